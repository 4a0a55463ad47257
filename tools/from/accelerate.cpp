#include "tools/from/accelerate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "data/read/json_message.h"
#include "tools/from/trainer.h"

namespace shardplan {
namespace {

// Of accelerate's deepspeed_config what is a setting of DeepSpeed
// (accelerate 1.15 utils/dataclasses.py, DeepSpeedPlugin).
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOfDeepspeed = {{
    {"deepspeed_config.zero_stage", "zero_optimization.stage"},
    {"deepspeed_config.gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"deepspeed_config.gradient_clipping", "gradient_clipping"},
    {"deepspeed_config.offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"deepspeed_config.offload_param_device", "zero_optimization.offload_param.device"},
}};

// Words of `accelerate launch` that stand in a section of its file (accelerate 1.15
// commands/launch.py).
constexpr std::array<std::string_view, 10> kInDeepspeed = {"zero_stage",
                                                           "offload_optimizer_device",
                                                           "offload_param_device",
                                                           "gradient_clipping",
                                                           "gradient_accumulation_steps",
                                                           "deepspeed_config_file",
                                                           "zero3_init_flag",
                                                           "zero3_save_16bit_model",
                                                           "deepspeed_hostfile",
                                                           "deepspeed_multinode_launcher"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSwitches = {{
    {"use_fsdp", "FSDP"},
    {"use_deepspeed", "DEEPSPEED"},
    {"multi_gpu", "MULTI_GPU"},
    {"use_megatron_lm", "MEGATRON_LM"},
}};
constexpr std::array<std::string_view, 4> kAtTop = {"mixed_precision", "num_processes",
                                                    "num_machines", "machine_rank"};

const Setting* setting_named(const std::vector<Setting>& settings, std::string_view name) {
  const auto found = std::ranges::find(settings.rbegin(), settings.rend(), name, &Setting::name);
  return found == settings.rend() ? nullptr : &*found;
}

std::int64_t ranks_of(const Setting& setting) {
  constexpr std::int64_t kMostRanks = std::int64_t{1} << 22;
  const std::string& word = setting.values.front();
  std::int64_t ranks = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), ranks);
  if (problem != std::errc() || end != word.data() + word.size() || ranks < 1 ||
      ranks > kMostRanks) {
    throw InputError(setting.place + "found \"" + shown(word, Encoding::kUnchecked) +
                     "\", expected an integer from 1 to " + std::to_string(kMostRanks));
  }
  return ranks;
}

// "fsdp_config.fsdp_version" is "fsdp_config.version", as in transformers' own.
std::string name_in_run(const std::string& name, bool is_deepspeed) {
  const auto* const known =
      std::ranges::find(kOfDeepspeed, name, [](const auto& each) { return each.first; });
  if (is_deepspeed && known != kOfDeepspeed.end()) {
    return std::string(known->second);
  }
  const std::string bare = without_fsdp(name);
  return bare.starts_with("fsdp_config.") && !is_deepspeed ? bare : "accelerate." + name;
}

std::string section_of(const std::string& name) {
  if (std::ranges::find(kInDeepspeed, name) != kInDeepspeed.end()) {
    return "deepspeed_config.";
  }
  for (const char* const section : {"fsdp_", "parallelism_config_", "fp8_"}) {
    if (name.starts_with(section)) {
      return section == std::string_view("fsdp_") ? "fsdp_config."
             : name.starts_with("fp8_")           ? "fp8_config."
                                                  : "parallelism_config.";
    }
  }
  return name.starts_with("dynamo_") ? "dynamo_config." : "";
}

}  // namespace

std::vector<Setting> settings_of_launcher(const std::vector<std::string>& launcher,
                                          const std::string& place) {
  std::vector<Setting> settings;
  const auto add = [&](const std::string& name, const std::string& value) {
    settings.push_back({.name = name, .values = {value}, .place = place + ": " + name + ": "});
  };
  for (std::size_t i = 0; i < launcher.size(); ++i) {
    if (!launcher[i].starts_with("--")) {
      continue;
    }
    const std::size_t equals = std::min(launcher[i].find('='), launcher[i].size());
    std::string name = launcher[i].substr(2, equals - 2);
    std::ranges::replace(name, '-', '_');
    const auto* const on =
        std::ranges::find(kSwitches, name, [](const auto& each) { return each.first; });
    if (on != kSwitches.end()) {
      add("distributed_type", std::string(on->second));
      continue;
    }
    const std::string section = section_of(name);
    const bool is_at_top = std::ranges::find(kAtTop, name) != kAtTop.end();
    const bool has_value = equals < launcher[i].size() ||
                           (i + 1 < launcher.size() && !launcher[i + 1].starts_with("--"));
    if ((section.empty() && !is_at_top) || !has_value) {
      continue;  // where the run starts
    }
    add(section + name,
        equals < launcher[i].size() ? launcher[i].substr(equals + 1) : launcher[i + 1]);
  }
  return settings;
}

std::vector<Setting> shipped_configuration(const std::string& name, const std::string& place) {
  std::vector<std::pair<std::string, std::string>> words;
  if (name.starts_with("zero") && name.size() == 5 && name[4] >= '1' && name[4] <= '3') {
    words = {{"distributed_type", "DEEPSPEED"}, {"deepspeed_config.zero_stage", name.substr(4)}};
  } else if (name == "fsdp1" || name == "fsdp2") {
    words = {{"distributed_type", "FSDP"}, {"fsdp_config.fsdp_version", name.substr(4)}};
  } else if (name == "multi_gpu" || name == "single_gpu") {
    words = {{"distributed_type", name == "multi_gpu" ? "MULTI_GPU" : "NO"}};
  } else {
    return {};
  }
  words.emplace_back("mixed_precision", "bf16");
  std::vector<Setting> settings;
  settings.reserve(words.size());
  for (const auto& [each, value] : words) {
    settings.push_back({.name = each, .values = {value}, .place = place + each + ": "});
  }
  return settings;
}

RunSettings settings_of_accelerate(const std::vector<Setting>& own, const std::string& file,
                                   const std::string& path) {
  const Setting* const type = setting_named(own, "distributed_type");
  const bool is_deepspeed = type != nullptr && in_lower_case(type->values.front()) == "deepspeed";
  RunSettings settings;
  const Setting* const named = setting_named(own, "deepspeed_config.deepspeed_config_file");
  if (is_deepspeed && named != nullptr) {
    settings = deepspeed_settings(*named, path);
  }
  settings.format = is_deepspeed ? RunFormat::kDeepspeed : RunFormat::kTransformers;
  settings.file = file;
  for (const Setting& each : own) {
    settings.arguments.push_back(
        {.name = name_in_run(each.name, is_deepspeed), .values = each.values, .place = each.place});
  }
  if (const Setting* const ranks = setting_named(own, "num_processes")) {
    settings.num_gpus = ranks_of(*ranks);
  }
  return settings;
}

}  // namespace shardplan
