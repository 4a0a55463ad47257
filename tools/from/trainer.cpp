#include "tools/from/trainer.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "data/read/json_message.h"
#include "data/read/text_file.h"
#include "tools/from/accelerate.h"
#include "tools/from/file.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

constexpr const char* kConfiguration = "deepspeed";

const Setting* setting_named(const std::vector<Setting>& settings, std::string_view name) {
  const auto found = std::ranges::find(settings.rbegin(), settings.rend(), name, &Setting::name);
  return found == settings.rend() ? nullptr : &*found;
}

bool has_any(const std::vector<Setting>& settings, std::initializer_list<std::string_view> names) {
  return std::ranges::any_of(
      names, [&](std::string_view name) { return setting_named(settings, name) != nullptr; });
}

std::string word_of(const Setting* setting) {
  return setting == nullptr || setting->values.empty() ? "" : setting->values.front();
}

bool is_yaml(const std::string& name) {
  return name.ends_with(".yaml") || name.ends_with(".yml");
}

bool is_of_version_1(const std::vector<Setting>& own) {
  return has_any(own, {"model_class", "dist_config.name", "init_config.name", "train_dataset"}) &&
         has_any(own, {"model"});
}

// Trainings by Megatron-Core have the settings of LLaMA-Factory's first version beside Megatron's
// sizes; what starts them is a variable of the environment.
void mark_megatron(std::vector<Setting>& own, const std::string& file) {
  const bool is_said = has_any(own, {"use_mca", "use_megatron_bridge", kConfiguration});
  if (!is_said && has_any(own, {"tensor_model_parallel_size", "megatron_bridge_args"})) {
    own.insert(own.begin(), {.name = "use_mca", .values = {"true"}, .place = file + ": use_mca: "});
  }
}

// {"use_reentrant": false}, as words of a command line say it.
void add_inline(std::vector<Setting>& settings, const Setting& setting) {
  const JsonValue value = parse_json(setting.values.front(), setting.place + "JSON");
  const RunSettings inner = section_settings(value, setting.place, RunFormat::kTransformers);
  for (const Setting& each : inner.arguments) {
    settings.push_back({.name = setting.name + "." + each.name,
                        .values = each.values,
                        .place = setting.place + each.name + ": "});
  }
}

std::vector<Setting> expanded(const std::vector<Setting>& own) {
  std::vector<Setting> settings;
  for (const Setting& setting : own) {
    const std::string word = word_of(&setting);
    const bool is_json = word.starts_with('{') && word.ends_with('}') && word.size() > 2 &&
                         setting.name != kConfiguration;
    if (is_json) {
      add_inline(settings, setting);
    } else {
      settings.push_back(setting);
    }
  }
  return settings;
}

// ms-swift 3602360 swift/config/fsdp2.json.
std::vector<Setting> swift_fsdp(const Setting& named) {
  std::vector<Setting> settings;
  for (const auto& [name, value] :
       {std::pair{"fsdp", "full_shard auto_wrap"}, std::pair{"fsdp_config.version", "2"},
        std::pair{"fsdp_config.reshard_after_forward", "true"},
        std::pair{"fsdp_config.activation_checkpointing", "true"},
        std::pair{"fsdp_config.cpu_ram_efficient_loading", "true"}}) {
    settings.push_back({.name = name, .values = {value}, .place = named.place + name + ": "});
  }
  return settings;
}

std::vector<Setting> settings_in_fsdp_file(const JsonValue& value, const std::string& file) {
  std::vector<Setting> settings = section_settings(value, file, RunFormat::kTransformers).arguments;
  for (Setting& each : settings) {
    const bool is_whole =
        each.name == "fsdp" || each.name.starts_with("fsdp_config.") || each.name.starts_with("_");
    each.name = is_whole ? each.name : "fsdp_config." + each.name;
  }
  return settings;
}

// The file of FSDP that `fsdp_config` names; of ms-swift `fsdp` does.
std::vector<Setting> fsdp_file(const Setting& named, const std::string& path) {
  const std::string name = word_of(&named);
  const std::string found = file_beside(name, path);
  if (found.empty()) {
    throw InputError(named.place + "found no file '" + shown(name, Encoding::kUnchecked) +
                     "', nor one of its name beside this one, expected a configuration of FSDP");
  }
  const JsonValue value = parse_json(read_text_file(found), found);
  if (value.kind != JsonKind::kObject) {
    throw InputError(named.place + "found '" + shown(name, Encoding::kUnchecked) +
                     "', which is no object, expected a configuration of FSDP");
  }
  return settings_in_fsdp_file(value, found);
}

// Settings of FSDP under one name each, those of named files among them.
std::vector<Setting> with_fsdp(const std::vector<Setting>& own, const std::string& path) {
  std::vector<Setting> settings;
  for (Setting setting : own) {
    const std::string word = word_of(&setting);
    const bool names_file =
        (setting.name == "fsdp_config" || setting.name == "fsdp") && word.ends_with(".json");
    std::vector<Setting> more;
    if (names_file) {
      more = fsdp_file(setting, path);
    } else if (setting.name == "fsdp" && word == "fsdp2") {
      more = swift_fsdp(setting);
    } else {
      more.push_back(std::move(setting));
    }
    for (Setting& each : more) {
      each.name = without_fsdp(each.name);
      settings.push_back(std::move(each));
    }
  }
  return settings;
}

// DeepSpeed's configuration that stands in the Trainer's own, as axolotl's may; it is taken out.
std::vector<Setting> take_deepspeed(std::vector<Setting>& own) {
  constexpr std::string_view kInner = "deepspeed.";
  std::vector<Setting> inner;
  for (Setting& each : own) {
    if (each.name.starts_with(kInner)) {
      inner.push_back(each);
      inner.back().name.erase(0, kInner.size());
    }
  }
  std::erase_if(own, [&](const Setting& each) { return each.name.starts_with(kInner); });
  return inner;
}

// What names DeepSpeed's configuration; LLaMA-Factory's version 1 has it beside the word for
// DeepSpeed (v1/plugins/trainer_plugins/distributed/deepspeed.py).
const Setting* deepspeed_named(const std::vector<Setting>& own) {
  const Setting* const backend = setting_named(own, "dist_config.name");
  if (word_of(backend) != kConfiguration) {
    return setting_named(own, kConfiguration);
  }
  const Setting* const file = setting_named(own, "dist_config.config_file");
  if (file == nullptr) {
    throw InputError(backend->place +
                     "found deepspeed without dist_config.config_file, expected the name of "
                     "DeepSpeed's configuration");
  }
  return file;
}

RunSettings sharding_of(TrainerWords& words) {
  RunSettings inner;
  inner.arguments = take_deepspeed(words.own);
  const Setting* const named = deepspeed_named(words.own);
  const std::string word = word_of(named);
  const bool is_off = word.empty() || word == "false" || word == "none" || word == "None";
  RunSettings around;
  around.format = RunFormat::kTransformers;
  if (!words.launcher.empty()) {
    around = settings_of_accelerate(words.launcher, words.file, words.path);
  }
  if (!inner.arguments.empty() && is_off) {
    inner.format = RunFormat::kDeepspeed;
    inner.num_gpus = around.num_gpus;
    return inner;
  }
  if (is_off) {
    return around;
  }
  RunSettings settings = deepspeed_settings(*named, words.path);
  if (settings.num_gpus == 0) {
    settings.num_gpus = around.num_gpus;
  }
  if (around.format == RunFormat::kDeepspeed) {
    return settings;  // the Trainer's own word goes before its launcher's
  }
  settings.arguments.insert(settings.arguments.begin(), around.arguments.begin(),
                            around.arguments.end());
  return settings;
}

}  // namespace

std::string file_beside(const std::string& name, const std::string& path) {
  std::vector<std::filesystem::path> tried = {name};
  std::error_code problem;
  std::filesystem::path folder = std::filesystem::absolute(path, problem).parent_path();
  tried.push_back(folder / std::filesystem::path(name).filename());
  constexpr int kHighest = 8;
  for (int level = 0; level < kHighest && !folder.empty(); ++level) {
    tried.push_back(folder / name);
    folder = folder == folder.root_path() ? std::filesystem::path() : folder.parent_path();
  }
  const auto found = std::ranges::find_if(tried, [](const std::filesystem::path& each) {
    std::error_code failed;
    return std::filesystem::is_regular_file(each, failed);
  });
  return found == tried.end() ? "" : found->string();
}

std::string without_fsdp(const std::string& name) {
  constexpr std::string_view kTwice = "fsdp_config.fsdp_";
  return name.starts_with(kTwice) ? "fsdp_config." + name.substr(kTwice.size()) : name;
}

RunSettings settings_of_fsdp(const JsonValue& value, const std::string& file) {
  TrainerWords words = {.own = settings_in_fsdp_file(value, file), .file = file, .path = file};
  if (setting_named(words.own, "fsdp") == nullptr) {
    words.own.push_back({.name = "fsdp", .values = {"full_shard auto_wrap"}, .place = file + ": "});
  }
  RunSettings settings = settings_of_trainer(std::move(words));
  settings.is_configuration = true;
  return settings;
}

RunSettings deepspeed_settings(const Setting& named, const std::string& path) {
  const std::string name = word_of(&named);
  if (name.starts_with('{')) {
    return section_settings(parse_json(name, named.place + "JSON"), named.place,
                            RunFormat::kDeepspeed);
  }
  const std::string found = file_beside(name, path);
  if (found.empty()) {
    throw InputError(named.place + "found no file '" + shown(name, Encoding::kUnchecked) +
                     "', nor one of its name beside this one, expected DeepSpeed's configuration");
  }
  if (is_yaml(found)) {
    if (found == path) {  // a configuration that names itself
      throw InputError(found +
                       ": found no configuration of accelerate, expected "
                       "compute_environment and distributed_type");
    }
    return settings_of_accelerate(accelerate_file(read_text_file(found), found), found, found);
  }
  RunSettings settings = settings_from_json(read_text_file(found), found);
  if (settings.format != RunFormat::kDeepspeed) {
    throw InputError(named.place + "found '" + shown(name, Encoding::kUnchecked) +
                     "', which is none of DeepSpeed, expected its configuration");
  }
  return settings;
}

void add_configuration(std::vector<Setting>& own, const std::vector<std::string>& set_words) {
  for (const std::string& word : set_words) {
    const std::size_t equals = std::min(word.find('='), word.size() - 1);
    const std::string name = word.substr(0, equals);
    if (name == kConfiguration || name == "fsdp_config") {
      own.push_back(
          {.name = name, .values = {word.substr(equals + 1)}, .place = "--set " + word + ": "});
    }
  }
}

TrainerProject project_of(const std::vector<Setting>& own) {
  if (is_of_version_1(own)) {
    return TrainerProject::kFactoryV1;
  }
  if (has_any(own, {"finetuning_type", "cutoff_len", "stage", "template"}) &&
      !has_any(own, {"tuner_type", "train_type"})) {
    return TrainerProject::kFactory;
  }
  if (has_any(own, {"base_model", "sequence_len"})) {
    return TrainerProject::kAxolotl;
  }
  if (has_any(own, {"tuner_type", "train_type"})) {
    return TrainerProject::kSwift;
  }
  const bool is_trl = has_any(
      own, {"packing", "use_peft", "loss_type", "dataset_mixer", "dataset_mixture",
            "completion_only_loss", "assistant_only_loss", "dataset_text_field", "dataset_name"});
  const bool is_other = has_any(own, {"block_size", "model_max_length", "dataset_path", "data_path",
                                      "do_train", "train_file"});
  return is_trl && !is_other ? TrainerProject::kTrl : TrainerProject::kTransformers;
}

bool is_of_trainer(const std::vector<Setting>& settings) {
  const bool is_axolotl =
      has_any(settings, {"base_model"}) &&
      has_any(settings, {"sequence_len", "micro_batch_size", "datasets", "adapter"});
  const bool is_swift =
      has_any(settings, {"model"}) && has_any(settings, {"tuner_type", "train_type"});
  return is_axolotl || is_swift || is_of_version_1(settings) ||
         (has_any(settings, {"model_name_or_path"}) &&
          has_any(settings, {"per_device_train_batch_size", "finetuning_type", "dataset_name",
                             "output_dir", "learning_rate", "dataset"}));
}

RunSettings settings_of_trainer(TrainerWords words) {
  words.own = with_fsdp(expanded(words.own), words.path);
  const TrainerProject named = project_of(words.own);
  const bool is_version_1 = named == TrainerProject::kFactoryV1;
  const TrainerProject project = is_version_1 ? named : words.project.value_or(named);
  if (project == TrainerProject::kFactory) {
    mark_megatron(words.own, words.file);
  }
  RunSettings settings = sharding_of(words);
  if (settings.num_gpus == 0 && project == TrainerProject::kAxolotl &&
      has_any(words.own, {"dp_shard_size"})) {
    settings.num_gpus = num_ranks(words.own, {"dp_shard_size", "dp_replicate_size",
                                              "tensor_parallel_size", "context_parallel_size"});
  }
  settings.file = words.file;
  settings.trainer = project;
  settings.model_name = {};
  for (const char* const name : {"model", "base_model", "model_name_or_path"}) {
    if (const Setting* const model = setting_named(words.own, name)) {
      settings.model_name = *model;
    }
  }
  settings.arguments.insert(settings.arguments.end(), words.own.begin(), words.own.end());
  return settings;
}

std::string configuration_beside(const Setting& model_name, const std::string& file) {
  const std::string name = word_of(&model_name);
  return name.empty() ? "" : file_beside(name + "/config.json", file);
}

InputError unknown_model(const Setting& model_name) {
  return InputError(model_name.place + "found '" +
                    shown(word_of(&model_name), Encoding::kUnchecked) +
                    "', whose sizes are not known here, expected --model NAME beside it (see "
                    "`shardplan list models`) or --model of its config.json");
}

}  // namespace shardplan
