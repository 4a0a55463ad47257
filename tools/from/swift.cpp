#include "tools/from/swift.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tools/from/megatron_attributes.h"

namespace shardplan {
namespace {

// Where ms-swift's defaults are not Megatron-LM's (ms-swift 4.6 swift/megatron/arguments/
// megatron_args.py, MegatronArguments; arguments/base_args/template_args.py, max_length). Its
// models have no dropout, its batches are packed or padded, without a mask from the data loader.
struct SwiftDefault {
  const char* name;
  const char* value = "";  // "": a switch
};
constexpr std::array<SwiftDefault, 14> kDefaults = {{
    {.name = "--attention-backend", .value = "flash"},
    {.name = "--attention-dropout", .value = "0"},
    {.name = "--attention-softmax-in-fp32"},
    {.name = "--bf16"},
    {.name = "--cross-entropy-loss-fusion"},
    {.name = "--global-batch-size", .value = "16"},
    {.name = "--hidden-dropout", .value = "0"},
    {.name = "--micro-batch-size", .value = "1"},
    {.name = "--moe-grouped-gemm"},
    {.name = "--moe-router-dtype", .value = "fp32"},
    {.name = "--moe-token-dispatcher-type", .value = "alltoall"},
    {.name = "--no-create-attention-mask-in-dataloader"},
    {.name = "--recompute-granularity", .value = "selective"},
    {.name = "--use-distributed-optimizer"},
}};

// Attributes by other names than Megatron-LM's arguments.
constexpr std::array<std::pair<const char*, const char*>, 3> kNames = {{
    {"max_length", "seq_length"},
    {"packing_length", "seq_length"},
    {"virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"},
}};

// ms-swift 4.6 swift/trainers/arguments.py, TrainArgumentsMixin; a type that is not said is the
// model's own, bf16 in those of today.
constexpr std::array<std::pair<const char*, const char*>, 3> kTrainerDefaults = {{
    {"bf16", "true"},
    {"gradient_checkpointing", "true"},
    {"per_device_train_batch_size", "1"},
}};

// ms-swift 4.6 swift/config/zero0.json to zero3_offload.json, what of them is not DeepSpeed's own
// default: "zero2_offload" is stage 2 with the optimizer in host memory, "zero3_offload" stage 3
// with the parameters there as well.
std::vector<Setting> zero_settings(const std::string& word, const std::string& place) {
  const bool offloads = word.ends_with("_offload");
  const std::string stage = word.substr(4, 1);
  std::vector<std::pair<std::string, std::string>> words = {
      {"stage", stage}, {"overlap_comm", "false"}, {"contiguous_gradients", "true"}};
  if (stage == "3") {
    words.insert(words.end(), {{"reduce_bucket_size", "auto"},
                               {"stage3_prefetch_bucket_size", "auto"},
                               {"stage3_max_live_parameters", "1000000000"}});
  } else {
    words.push_back({"reduce_bucket_size", "200000000"});
  }
  if (offloads) {
    words.insert(words.end(),
                 {{"offload_optimizer.device", "cpu"}, {"offload_optimizer.pin_memory", "true"}});
  }
  if (offloads && stage == "3") {
    words.insert(words.end(),
                 {{"offload_param.device", "cpu"}, {"offload_param.pin_memory", "true"}});
  }
  std::vector<Setting> settings;
  settings.reserve(words.size());
  for (const auto& [name, value] : words) {
    settings.push_back(
        {.name = "zero_optimization." + name, .values = {value}, .place = place + name + ": "});
  }
  return settings;
}

// "true" as Python prints it.
std::string printed(const std::vector<std::string>& values) {
  const std::string word = values.empty() ? "true" : in_lower_case(values.front());
  return word == "true" ? "True" : word == "false" ? "False" : word == "none" ? "None" : word;
}

// Muon's is not distributed, whatever the arguments say (ms-swift 3602360
// swift/megatron/arguments/megatron_args.py, _check_muon).
void drop_distributed_optimizer(RunSettings& settings) {
  const bool has_muon = std::ranges::any_of(settings.arguments, [](const Setting& each) {
    return each.name == "--optimizer" && !each.values.empty() &&
           each.values.front().find("muon") != std::string::npos;
  });
  if (has_muon) {
    std::erase_if(settings.arguments,
                  [](const Setting& each) { return each.name == "--use-distributed-optimizer"; });
  }
}

// Where sequences are not packed, max_length only bounds them.
void note_bound(const std::vector<Setting>& words, std::vector<std::string>& notes) {
  const auto named = [&](std::string_view name) {
    return std::ranges::find_if(words, [&](const Setting& each) {
      std::string attribute = each.name.substr(2);
      std::ranges::replace(attribute, '-', '_');
      return attribute == name;
    });
  };
  const auto length = named("max_length");
  const auto packing = named("packing");
  const bool is_packed = packing != words.end() && printed(packing->values) == "True";
  if (length != words.end() && !length->values.empty() && !is_packed) {
    notes.push_back(length->place + "found " + length->values.front() +
                    ", took all sequences to be as long; --sequence-length says otherwise");
  }
}

}  // namespace

bool is_swift_program(const std::string& program) {
  return program.starts_with("megatron ");
}

RunSettings settings_of_swift(const std::vector<Setting>& words, const std::string& file,
                              const Library& library, std::vector<std::string>& notes) {
  const ArgumentTable table = argument_table(library, "megatron");
  RunSettings settings;
  settings.file = file;
  for (const SwiftDefault& each : kDefaults) {
    const std::string value = each.value;
    settings.arguments.push_back(
        {.name = each.name,
         .values = value.empty() ? std::vector<std::string>{} : std::vector<std::string>{value},
         .place = file + ": " + each.name + ": "});
  }
  for (const Setting& word : words) {
    std::string attribute = word.name.substr(2);
    std::ranges::replace(attribute, '-', '_');
    if (attribute == "model" || (attribute == "load" && settings.model_name.name.empty())) {
      settings.model_name = word;  // of a converted checkpoint its name
    }
    const auto* const other = std::ranges::find(
        kNames, attribute, [](const auto& each) { return std::string_view(each.first); });
    attribute = other == kNames.end() ? attribute : other->second;
    const std::string value = printed(word.values);
    const std::string name = argument_of_attribute(attribute, value, table);
    std::string dashed = "--" + attribute;  // a default that this takes back
    std::ranges::replace(dashed, '_', '-');
    std::erase_if(settings.arguments,
                  [&](const Setting& each) { return each.name == dashed || each.name == name; });
    if (name.empty() || value == "None") {
      continue;
    }
    const ArgumentRow* const row = find_row(table, name);
    const bool is_switch = row != nullptr && row->num_values == 0;
    settings.arguments.push_back({.name = name,
                                  .values = is_switch ? std::vector<std::string>{} : word.values,
                                  .place = word.place});
  }
  drop_distributed_optimizer(settings);
  note_bound(words, notes);
  return settings;
}

bool is_swift_trainer(const std::string& program) {
  constexpr std::array<std::string_view, 3> kCommands = {"sft", "pt", "rlhf"};
  return std::ranges::any_of(kCommands, [&](std::string_view command) {
    const std::string name(command);
    return program == "swift " + name || program.ends_with("swift/cli/" + name + ".py");
  });
}

RunSettings settings_of_swift_trainer(TrainerWords words) {
  std::vector<Setting>& own = words.own;
  words.project = TrainerProject::kSwift;
  for (Setting& each : own) {
    const std::string type = each.name == "torch_dtype" ? each.values.front() : "";
    if (type == "float16" || type == "float32") {
      each.name = type == "float16" ? "fp16" : "bf16";
      each.values = {type == "float16" ? "true" : "false"};
    }
  }
  const auto is_given = [&](const char* name) {
    return std::ranges::find(own, name, &Setting::name) != own.end();
  };
  for (const auto& [name, value] : kTrainerDefaults) {
    if (!is_given(name) && !(name == std::string_view("bf16") && is_given("fp16"))) {
      own.insert(own.begin(),
                 {.name = name, .values = {value}, .place = words.file + ": " + name + ": "});
    }
  }
  const auto named = std::ranges::find(own, "deepspeed", &Setting::name);
  const std::string word = named == own.end() || named->values.empty() ? "" : named->values.front();
  if (!word.starts_with("zero") || word.ends_with(".json")) {
    return settings_of_trainer(std::move(words));
  }
  std::vector<Setting> shipped = zero_settings(word, named->place);
  own.erase(named);
  RunSettings settings = settings_of_trainer(std::move(words));
  settings.format = RunFormat::kDeepspeed;
  settings.arguments.insert(settings.arguments.begin(), shipped.begin(), shipped.end());
  return settings;
}

RunSettings settings_of_program(TrainerWords words) {
  const TrainerProject project = words.project.value_or(project_of(words.own));
  return project == TrainerProject::kSwift ? settings_of_swift_trainer(std::move(words))
                                           : settings_of_trainer(std::move(words));
}

bool is_of_megatron_swift(const std::vector<Setting>& own) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(own, name, &Setting::name) != own.end();
  };
  constexpr std::array<std::string_view, 6> kSizes = {
      "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
      "context_parallel_size",      "recompute_granularity",        "mcore_model"};
  return has("model") && (has("tuner_type") || has("train_type")) &&
         !has("per_device_train_batch_size") && std::ranges::any_of(kSizes, has);
}

// Its ENV section is the environment (ms-swift 3602360 swift/cli/main.py).
RunSettings settings_of_swift_file(const std::vector<Setting>& own, const std::string& file,
                                   const Library& library, std::vector<std::string>& notes) {
  constexpr std::string_view kEnvironment = "ENV.";
  std::vector<Setting> words;
  std::vector<Setting> environment;
  for (Setting each : own) {
    if (each.name.starts_with(kEnvironment)) {
      each.name.erase(0, kEnvironment.size());
      environment.push_back(std::move(each));
      continue;
    }
    each.name.insert(0, "--");
    std::ranges::replace(each.name, '_', '-');
    words.push_back(std::move(each));
  }
  RunSettings settings = settings_of_swift(words, file, library, notes);
  settings.environment = std::move(environment);
  return settings;
}

}  // namespace shardplan
