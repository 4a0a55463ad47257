#include "tools/from/trainer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "data/read/json_message.h"
#include "data/read/text_file.h"
#include "tools/from/file.h"
#include "tools/from/yaml.h"

namespace shardplan {
namespace {

constexpr const char* kConfiguration = "deepspeed";

// DeepSpeed's own is JSON, accelerate's YAML.
RunSettings settings_of_file(const Setting& named, const std::string& path, bool is_accelerates) {
  const std::string name = named.values.empty() ? "" : named.values.front();
  const std::string found = file_beside(name, path);
  if (found.empty()) {
    throw InputError(named.place + "found no file '" + shown(name, Encoding::kUnchecked) +
                     "', nor one of its name beside this one, expected DeepSpeed's configuration");
  }
  if (!is_accelerates && (found.ends_with(".yaml") || found.ends_with(".yml"))) {
    return settings_from_accelerate(read_text_file(found), found);
  }
  RunSettings settings = settings_from_json(read_text_file(found), found);
  if (settings.format != RunFormat::kDeepspeed) {
    throw InputError(named.place + "found '" + shown(name, Encoding::kUnchecked) +
                     "', which is none of DeepSpeed, expected its configuration");
  }
  return settings;
}

// Of accelerate's deepspeed_config what is a setting of DeepSpeed
// (accelerate 1.10 utils/dataclasses.py, DeepSpeedPlugin).
constexpr std::array<std::pair<const char*, const char*>, 5> kAccelerate = {{
    {"deepspeed_config.zero_stage", "zero_optimization.stage"},
    {"deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"deepspeed_config.gradient_clipping", "gradient_clipping"},
    {"deepspeed_config.offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"deepspeed_config.offload_param_device", "zero_optimization.offload_param.device"},
}};

const Setting* setting_named(const std::vector<Setting>& settings, std::string_view name) {
  const auto found = std::ranges::find(settings.rbegin(), settings.rend(), name, &Setting::name);
  return found == settings.rend() ? nullptr : &*found;
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

RunSettings settings_of_trainer(std::vector<Setting> own, const std::string& file,
                                const std::string& path) {
  const Setting* const named = setting_named(own, kConfiguration);
  if (named == nullptr && setting_named(own, "tensor_model_parallel_size") != nullptr) {
    throw InputError(file +
                     ": found a training of LLaMA-Factory by Megatron, whose settings are no "
                     "arguments of Megatron-LM; expected options: --framework megatron with "
                     "--model, --sequence-length, --tp, --pp and so on");
  }
  if (named == nullptr) {
    throw InputError(file +
                     ": found a training of transformers' Trainer without deepspeed, whose "
                     "DistributedDataParallel or FSDP no profile describes; expected deepspeed: "
                     "FILE, or --set deepspeed=FILE of DeepSpeed's configuration or accelerate's; "
                     "--framework torchtitan is FSDP2 as torchtitan uses it");
  }
  RunSettings settings = settings_with_model(own, file);
  RunSettings sharding = settings_of_file(*named, path, false);
  settings.num_gpus = sharding.num_gpus;  // which accelerate's says
  settings.arguments = std::move(sharding.arguments);
  settings.arguments.insert(settings.arguments.end(), own.begin(), own.end());
  return settings;
}

RunSettings settings_with_model(const std::vector<Setting>& own, const std::string& file) {
  RunSettings settings;
  settings.format = RunFormat::kDeepspeed;
  settings.file = file;
  for (const char* const name : {"base_model", "model_name_or_path"}) {
    if (const Setting* const model = setting_named(own, name)) {
      settings.model_name = *model;
    }
  }
  return settings;
}

RunSettings settings_of_accelerate(const std::vector<Setting>& own, const std::string& file,
                                   const std::string& path) {
  RunSettings settings;
  const Setting* const named = setting_named(own, "deepspeed_config.deepspeed_config_file");
  if (named != nullptr) {
    settings = settings_of_file(*named, path, true);
  }
  settings.format = RunFormat::kDeepspeed;
  settings.file = file;
  for (const auto& [name, meant] : kAccelerate) {
    if (const Setting* const each = setting_named(own, name)) {
      settings.arguments.push_back({.name = meant, .values = each->values, .place = each->place});
    }
  }
  if (const Setting* const mixed = setting_named(own, "mixed_precision")) {
    for (const char* const type : {"bf16", "fp16"}) {
      if (mixed->values.front() == type) {
        settings.arguments.push_back(
            {.name = std::string(type) + ".enabled", .values = {"true"}, .place = mixed->place});
      }
    }
  }
  if (const Setting* const ranks = setting_named(own, "num_processes")) {
    constexpr std::int64_t kMostRanks = std::int64_t{1} << 22;
    const std::string& word = ranks->values.front();
    const auto [end, problem] =
        std::from_chars(word.data(), word.data() + word.size(), settings.num_gpus);
    if (problem != std::errc() || end != word.data() + word.size() || settings.num_gpus < 1 ||
        settings.num_gpus > kMostRanks) {
      throw InputError(ranks->place + "found \"" + shown(word, Encoding::kUnchecked) +
                       "\", expected an integer from 1 to " + std::to_string(kMostRanks));
    }
  }
  return settings;
}

std::string named_model(const Setting& model_name, const std::string& file,
                        const Library& library) {
  const std::string name = model_name.values.empty() ? "" : model_name.values.front();
  std::string config = name.empty() ? "" : file_beside(name + "/config.json", file);
  if (!config.empty()) {
    return config;
  }
  std::string preset = library.published_model(name);
  if (preset.empty()) {
    throw InputError(model_name.place + "found '" + shown(name, Encoding::kUnchecked) +
                     "', whose sizes are not known here, expected --model NAME beside it (see "
                     "`shardplan list models`) or --model of its config.json");
  }
  return preset;
}

}  // namespace shardplan
