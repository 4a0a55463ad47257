// Names and defaults of ms-swift 4.6 swift/megatron/arguments/megatron_args.py, MegatronTunerMixin;
// which modules they are: swift/megatron/utils/utils.py, get_target_modules, get_modules_to_save.
#include "data/arguments/megatron_tuning.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "data/arguments/megatron_hybrid.h"
#include "data/read/case_tuning.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

// A linear layer of Megatron-core, and the places of Hugging Face's models that it stands for.
struct MegatronModule {
  std::string_view name;
  std::array<LinearLayer, 3> places{};
};
constexpr std::array<MegatronModule, 7> kModules = {{
    {"linear_qkv", {LinearLayer::kQuery, LinearLayer::kKey, LinearLayer::kValue}},
    {"linear_proj", {LinearLayer::kOutput, LinearLayer::kOutput, LinearLayer::kOutput}},
    {"linear_fc1", {LinearLayer::kGate, LinearLayer::kUp, LinearLayer::kUp}},
    {"linear_fc2", {LinearLayer::kDown, LinearLayer::kDown, LinearLayer::kDown}},
    {"in_proj", {LinearLayer::kMixerInput, LinearLayer::kMixerInput, LinearLayer::kMixerInput}},
    {"in_proj_qkvz",
     {LinearLayer::kMixerInput, LinearLayer::kMixerInput, LinearLayer::kMixerInput}},
    {"out_proj", {LinearLayer::kMixerOutput, LinearLayer::kMixerOutput, LinearLayer::kMixerOutput}},
}};

// All linear layers are a prediction module's projection, too, which has no name of its own here.
void read_targets(const RunArguments& arguments, RunReading& run) {
  const char* const setting = "--target-modules";
  std::vector<std::string> names = arguments.texts(setting);
  if (names.empty()) {
    names = {"all-linear"};
  }
  for (const std::string& name : names) {
    const auto* const found = std::ranges::find(kModules, name, &MegatronModule::name);
    if (name == "all-linear") {
      set_targets(run.job.adapters, all_linear_targets());
    } else if (name == "linear_qkv" && run.job.model.is_mla()) {
      refuse(run, std::string(setting) +
                      " linear_qkv: latent attention has none; all-linear, linear_proj, linear_fc1 "
                      "and linear_fc2 are described");
    } else if (name == "in_proj_ba") {
      continue;  // beside in_proj_qkvz, see below
    } else if (found != kModules.end()) {
      for (const LinearLayer place : found->places) {
        run.job.adapters.targets.at(static_cast<std::size_t>(place)) = true;
      }
    } else {
      refuse(run, std::string(setting) + " " + shown(name, Encoding::kUnchecked) +
                      ": all-linear, linear_qkv, linear_proj, linear_fc1, linear_fc2, in_proj and "
                      "out_proj are described");
    }
  }
}

// mcore-bridge 1.6.5 model/modules/gated_delta_net.py: in_proj, or in_proj_qkvz and in_proj_ba in
// its place, with adapters of their own.
void check_inputs_of_mixers(const RunArguments& arguments, RunReading& run) {
  const char* const setting = "--target-modules";
  const std::vector<std::string> names = arguments.texts(setting);
  const auto has = [&](const char* name) { return std::ranges::find(names, name) != names.end(); };
  const bool is_two = splits_mixer_input(arguments, run.job.model);
  const bool names_parts = has("in_proj_qkvz") || has("in_proj_ba");
  if (is_two && has("in_proj")) {
    refuse(run, std::string(setting) +
                    " in_proj with --linear-decoupled-in-proj true: there are in_proj_qkvz and "
                    "in_proj_ba, with adapters on both or on neither");
  } else if (names_parts && (!is_two || has("in_proj_qkvz") != has("in_proj_ba"))) {
    refuse(run, std::string(setting) + (has("in_proj_ba") ? " in_proj_ba" : " in_proj_qkvz") +
                    ": both are described, with --linear-decoupled-in-proj true");
  }
}

void read_trained_modules(const RunArguments& arguments, RunReading& run) {
  const char* const setting = "--modules-to-save";
  for (const std::string& name : arguments.texts(setting)) {
    if (name == "word_embeddings" || name == "embedding" || name == "all-embedding") {
      run.job.adapters.trains_table = true;
    } else if (name == "output_layer") {
      run.job.adapters.trains_head = true;
    } else {
      refuse(run, std::string(setting) + " " + shown(name, Encoding::kUnchecked) +
                      ": word_embeddings and output_layer are described");
    }
  }
}

// The older name counts where both are given.
const char* tuner_setting(const RunArguments& arguments) {
  return arguments.has("--train-type") ? "--train-type" : "--tuner-type";
}

}  // namespace

void read_megatron_adapters(const RunArguments& arguments, RunReading& run) {
  const char* const setting = tuner_setting(arguments);
  const std::string tuner = arguments.text_or(setting, "full");
  const bool continues = arguments.has("--adapters");
  if (tuner == "full" && !continues) {
    return;
  }
  if (tuner != "lora") {
    refuse(run, continues ? "--adapters without --tuner-type lora beside it, which they make it: "
                            "their rank stands in their own files"
                          : std::string(setting) + " " + shown(tuner, Encoding::kUnchecked) +
                                ": full and lora are described");
    return;
  }
  if (arguments.text_or("--lora-bias", "none") != "none") {
    refuse(run, "--lora-bias " + shown(arguments.text_or("--lora-bias", ""), Encoding::kUnchecked) +
                    ": none is described");
  }
  constexpr double kDropout = 0.05;
  constexpr std::int64_t kRank = 8;
  Adapters& adapters = run.job.adapters;
  adapters.rank = arguments.integer_or("--lora-rank", kRank, 1, kMaxRank);
  adapters.dropout = arguments.number_or("--lora-dropout", kDropout, 0, 1);
  adapters.dtype = DType::kBf16;
  read_targets(arguments, run);
  check_inputs_of_mixers(arguments, run);
  read_trained_modules(arguments, run);
}

}  // namespace shardplan
