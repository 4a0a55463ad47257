#include "data/arguments/trainer_experts.h"

#include <string>

#include "data/read/json_message.h"

namespace shardplan {

void read_packed_experts(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const char* const setting = "quantize_moe_experts";
  if (!is_on(trainer.arguments, setting) || run.job.model.moe.num_experts == 0 ||
      run.job.quantized.kind == Quantization::kNone) {
    return;
  }
  // They are packed as they come to a GPU (axolotl 067b021 monkeypatch/moe_quant.py
  // _patched_set_param_for_module), which FSDP2 with cpu_ram_efficient_loading has them not do
  // (loaders/model.py _build_model, device_map); without it every GPU has them all until FSDP2
  // shards them.
  const bool is_sharded = run.plan.zero > 0 && run.job.profile.fsdp_version == 2;
  const char* const host = "fsdp_config.cpu_ram_efficient_loading";
  if (is_sharded && is_on(trainer.arguments, host)) {
    run.notes.push_back(trainer.file + ": " + setting + ": found true with " + host +
                        ", with which experts are loaded on the host and stay as they are; took "
                        "experts that are not quantized");
    return;
  }
  if (takes_word(run, "quantizes_experts", "true", library)) {
    want(run, "quantizes_experts", "true", library);
    if (is_sharded) {
      want(run, "loads_whole", "true", library);
    }
  } else {
    refuse(run, std::string(setting) + " true: under transformers' Trainer alone it is described");
  }
}

void read_dispatcher(RunReading& run, const Library& library) {
  if (run.plan.ep > 1 && takes_word(run, "moe_dispatcher", "deepep", library)) {
    want(run, "moe_dispatcher", "deepep", library);
  }
}

namespace {

constexpr std::string_view kGrouped = "grouped_mm";
constexpr std::string_view kEager = "eager";
constexpr std::string_view kScatterMoe = "scattermoe";

bool has_kernels_plugin(const RunArguments& arguments) {
  return arguments.text_or("plugins", "").find("KernelsPlugin") != std::string::npos;
}

// axolotl's plugin has ScatterMoE's kernels where it is told so, whatever else is said, and one
// expert after the other where nothing is (axolotl 067b021 integrations/kernels/args.py
// check_experts_implementation, plugin.py pre_model_load).
std::string named_kernels(const RunArguments& arguments, const char* name) {
  const std::string word = arguments.text_or(name, "");
  if (!has_kernels_plugin(arguments)) {
    return word.empty() ? std::string(kGrouped) : word;
  }
  if (is_on(arguments, "use_scattermoe") ||
      arguments.text_or("expert_backend", "") == kScatterMoe) {
    return std::string(kScatterMoe);
  }
  return word.empty() || word == kScatterMoe ? std::string(kEager) : word;
}

void read_named_experts(const TrainerFile& trainer, const char* name, RunReading& run,
                        const Library& library) {
  const std::string word = named_kernels(trainer.arguments, name);
  if (word == kEager && takes_word(run, "eager_experts", "true", library)) {
    want(run, "eager_experts", "true", library);
  } else if (word == kScatterMoe && has_kernels_plugin(trainer.arguments) &&
             takes_word(run, "expert_kernels", word, library)) {
    want(run, "expert_kernels", word, library);
  } else if (word != kGrouped) {
    refuse(run, (trainer.arguments.has(name) ? shown_setting(trainer.arguments, name)
                                             : "experts_implementation " + word) +
                    ": torch's grouped products, transformers' default, are described");
  }
}

// The Hub's kernels, which transformers puts in place as a model begins to train (5.14.1
// modeling_utils.py train, set_use_kernels): norms and rotary embeddings that Liger has not taken
// before, and gpt-oss's experts.
void read_hub_kernels(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  if (!is_on(arguments, "use_kernels") && !has_kernels_plugin(arguments)) {
    return;
  }
  if (!takes_word(run, "liger_kernel", "norms", library)) {
    refuse(run, "use_kernels true: under transformers' Trainer alone it is described");
    return;
  }
  if (run.plan.offload.parameters) {
    run.notes.push_back(trainer.file +
                        ": use_kernels: found true with parameters on the host, for which "
                        "transformers takes no kernels of the Hub; took its own operators");
    return;
  }
  if (run.job.model.family == "gpt_oss") {
    want(run, "expert_kernels", "megablocks", library);
  }
  if (first_on(arguments, {"liger_rms_norm", "liger_rope", "use_liger_kernel"}) == nullptr) {
    want(run, "liger_kernel", "norms", library);
  }
}

}  // namespace

void read_expert_kernels(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  if (run.job.model.moe.num_experts > 0) {
    const char* const other = "experts_impl";  // ms-swift's
    read_named_experts(trainer, arguments.has(other) ? other : "experts_implementation", run,
                       library);
  }
  if (is_on(arguments, "use_scattermoe") && !has_kernels_plugin(arguments)) {
    refuse(run,
           "use_scattermoe true: axolotl's KernelsPlugin reads it, which plugins does not "
           "name");
  }
  read_hub_kernels(trainer, run, library);
}

}  // namespace shardplan
