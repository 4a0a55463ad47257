// A run of transformers' Trainer, or of a program around it, on one GPU, under
// DistributedDataParallel or FSDP. Defaults as in transformers 5.17 training_args.py and
// accelerate 1.15 utils/dataclasses.py, FullyShardedDataParallelPlugin; those of the programs
// around it stand in trainer_projects.cpp.
#include "data/arguments/transformers.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/arguments/environment.h"
#include "data/arguments/trainer.h"
#include "data/arguments/trainer_experts.h"
#include "data/arguments/trainer_kernels.h"
#include "data/arguments/trainer_objective.h"
#include "data/arguments/trainer_offload.h"
#include "data/arguments/trainer_optimizers.h"
#include "data/arguments/trainer_parallel.h"
#include "data/arguments/trainer_parts.h"
#include "data/arguments/trainer_quantized.h"
#include "data/arguments/trainer_tuning.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

bool contains_word(const std::string& text, std::string_view word) {
  return in_lower_case(text).find(word) != std::string::npos;
}

// What turns FSDP on: accelerate's launcher, the Trainer's own word, or a configuration, which is
// enough for axolotl. LLaMA-Factory's version 1 shards nothing over one rank
// (plugins/trainer_plugins/distributed/fsdp2.py, prepare_model).
bool uses_fsdp(const TrainerFile& trainer, std::int64_t ranks) {
  const RunArguments& arguments = trainer.arguments;
  if (trainer.defaults.project == TrainerProject::kFactoryV1) {
    return ranks > 1 && arguments.text_or("dist_config.name", "") == "fsdp2";
  }
  const std::string own = in_lower_case(arguments.text_or("fsdp", ""));
  const bool has_version = arguments.has("fsdp_version") || arguments.has("fsdp_config.version");
  return arguments.text_or("accelerate.distributed_type", "") == "FSDP" ||
         (!own.empty() && own != "false" && own != "[]") ||
         (trainer.defaults.project == TrainerProject::kAxolotl &&
          (has_version || arguments.has("fsdp_config.reshard_after_forward") ||
           arguments.has("fsdp_config.offload_params")));
}

// FULL_SHARD and its kin, in the words of either version; "" where nothing says it.
std::string strategy_of(const RunArguments& arguments) {
  for (const char* const name :
       {"fsdp_config.reshard_after_forward", "fsdp_config.sharding_strategy", "fsdp",
        "dist_config.reshard_after_forward"}) {
    const std::string word = in_lower_case(arguments.text_or(name, ""));
    for (const std::string_view known :
         {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "true", "false"}) {
      if (word.find(known) != std::string::npos) {
        return std::string(known);
      }
    }
  }
  return "";
}

void read_strategy(const RunArguments& arguments, RunReading& run) {
  const std::string strategy = strategy_of(arguments);
  if (strategy == "no_shard" || strategy == "hybrid_shard") {
    refuse(run, "FSDP's " + strategy + ": full_shard and shard_grad_op are described");
  }
  run.plan.zero = strategy == "shard_grad_op" || strategy == "false" ? 2 : 3;
}

std::int64_t fsdp_version(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  for (const char* const name : {"fsdp_config.version", "fsdp_version"}) {
    if (arguments.has(name)) {
      return arguments.integer_or(name, 1, 1, 2);
    }
  }
  const bool by_launcher = arguments.text_or("accelerate.distributed_type", "") == "FSDP";
  const std::int64_t version = by_launcher ? 1 : trainer.defaults.fsdp_version;
  if (version == 1) {
    run.notes.push_back(trainer.file +
                        ": fsdp_version: found nothing, took 1, the default of the accelerate that "
                        "it runs under; --set fsdp_version=2 says otherwise");
  }
  return version;
}

// When FSDP1 gathers what the backward pass will need: not ahead where nobody says so (transformers
// 5.17 training_args.py, _process_fsdp_args; accelerate 1.15 commands/launch.py).
std::string prefetch_of(const RunArguments& arguments) {
  for (const char* const name :
       {"fsdp_config.backward_prefetch", "fsdp_config.backward_prefetch_policy"}) {
    const std::string word = in_lower_case(arguments.text_or(name, ""));
    if (word == "backward_pre" || word == "backward_post") {
      return word;
    }
  }
  return "none";
}

// Groups of their own are described of these: not of magnitudes, copies of tables and experts.
bool has_plain_adapters(const RunReading& run) {
  const Adapters& adapters = run.job.adapters;
  return adapters.rank > 0 && adapters.kind == AdapterKind::kLora && !adapters.decomposes_weights &&
         !adapters.trains_table && !adapters.trains_head &&
         adapters.expert_targets == ExpertTargets::kNone && run.plan.tp == 1;
}

void read_fsdp(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  read_strategy(arguments, run);
  // Weights, gradients and optimizer lie in host memory (accelerate 1.15 utils/dataclasses.py,
  // cpu_offload).
  if (first_on(arguments, {"fsdp_config.offload_params", "dist_config.offload_params"}) !=
          nullptr ||
      contains_word(arguments.text_or("fsdp", ""), "offload")) {
    run.plan.offload.parameters = true;
    run.plan.offload.optimizer = 1;
  }
  const std::string policy =
      arguments.text_or("fsdp_config.auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
  if (policy != "TRANSFORMER_BASED_WRAP") {
    refuse(run, "fsdp_config.auto_wrap_policy " + shown(policy, Encoding::kUnchecked) +
                    ": TRANSFORMER_BASED_WRAP is described, layer by layer");
  }
  want(run, "fsdp_version", std::to_string(fsdp_version(trainer, run)), library);
  const Quantization kind = run.job.quantized.kind;
  const bool is_4bit = kind == Quantization::kNf4 || kind == Quantization::kFp4;
  const bool keeps_4bit = is_4bit && trainer.defaults.fsdp_ends != "root";
  want(run, "fsdp_upcast", keeps_4bit ? "none" : std::string(trainer.defaults.fsdp_upcast),
       library);
  want(run, "fsdp_ends", std::string(trainer.defaults.fsdp_ends), library);
  const std::string storage = "float_quant_storage";
  if (is_4bit && takes_word(run, storage, "true", library)) {
    want(run, storage, stores_floats(trainer) ? "true" : "false", library);
  }
  // axolotl 067b021 monkeypatch/accelerate/fsdp2.py _process_lora_module_for_fsdp.
  if (trainer.defaults.project == TrainerProject::kAxolotl && run.job.profile.fsdp_version == 2 &&
      has_plain_adapters(run)) {
    want(run, "fsdp_adapters_alone", "true", library);
  }
  const std::string prefetch = prefetch_of(arguments);
  if (takes_word(run, "fsdp_prefetch", prefetch, library)) {
    want(run, "fsdp_prefetch", prefetch, library);
  }
}

// LLaMA-Factory's version 1: plain FSDP2, gradients reduced in fp32 and in every microbatch,
// matrices of adapters by themselves (fsdp2.py, prepare_model); PyTorch's AdamW as it comes.
void read_version_1(const TrainerFile& trainer, bool is_sharded, RunReading& run,
                    const Library& library) {
  want(run, "loop", "llamafactory_v1", library);
  if (is_sharded) {
    want(run, "fsdp_reduce_dtype", "fp32", library);
    const std::string init =
        trainer.arguments.word_or("init_config.name", "init_on_default",
                                  {"init_on_default", "init_on_meta", "init_on_rank0"});
    want(run, "loads_whole", init == "init_on_default" ? "true" : "false", library);
    want(run, "fsdp_adapters_alone", trains_adapters(trainer) ? "true" : "false", library);
  }
  if (run.plan.cp > 1 && !uses_flash_attention(trainer.arguments)) {
    refuse(run, "cp_size " + std::to_string(run.plan.cp) +
                    " without flash_attn flash_attention_2, which LLaMA-Factory's version 1 asks "
                    "for (core/base_trainer.py)");
  }
  if (run.plan.precision == Precision::kFp32 && uses_flash_attention(trainer.arguments)) {
    refuse(run,
           "flash_attn flash_attention_2 with products in fp32: FlashAttention takes fp16 and bf16 "
           "alone, bf16 true or flash_attn sdpa do");
  }
  read_quant_compute(trainer, is_sharded, run, library);
  want(run, "fused_optimizer", "false", library);
  want(run, "foreach_optimizer", "true", library);
}

// Other launchers of accelerate than those that are read.
void check_launcher(const RunArguments& arguments, RunReading& run) {
  constexpr std::array<std::string_view, 4> kKnown = {"no", "multi_gpu", "fsdp", "deepspeed"};
  const std::string type = in_lower_case(arguments.text_or("accelerate.distributed_type", "no"));
  if (std::ranges::find(kKnown, type) == kKnown.end()) {
    refuse(run,
           "distributed_type " +
               shown(arguments.text_or("accelerate.distributed_type", ""), Encoding::kUnchecked) +
               ": NO, MULTI_GPU, FSDP and DEEPSPEED are described");
  }
}

void read_types(const TrainerFile& trainer, bool is_sharded, RunReading& run,
                const Library& library) {
  const TrainerTypes types = types_of(trainer, is_sharded);
  run.plan.precision = types.precision;
  run.plan.grad_dtype = DType::kBf16;  // stands for that of the weights, in the profile's words
  if (!types.because.empty()) {
    run.notes.push_back(types.because);
  }
  const std::string weights(name_of(types.weights));
  if (!takes_word(run, "weights_dtype", weights, library)) {
    refuse(run, "weights in " + weights + ": those in bf16 and fp32 are described");
    return;
  }
  want(run, "weights_dtype", weights, library);
  want(run, "autocast", types.autocast ? "true" : "false", library);
  if (types.wide_ends) {
    want(run, "wide_ends", "true", library);
  }
}

// LLaMA-Factory's is not reentrant under FSDP2 (model/model_utils/checkpointing.py), and what
// accelerate wraps never is; up to 1.14 (whose groups of FSDP2 end otherwise) it wraps parts of
// layers. axolotl wraps layers around them (067b021 monkeypatch/accelerate/fsdp2.py
// fsdp2_prepare_model), which then keep their inputs alone and replay part by part: less by some
// tensors of one layer than a layer that is replayed as a whole, which is taken.
void read_checkpoints(const TrainerFile& trainer, bool is_sharded, RunReading& run,
                      const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  const char* const own = "gradient_checkpointing_kwargs.use_reentrant";
  // axolotl's normalize_config asks for it where all is trained.
  const bool by_default = trainer.defaults.reentrant && !arguments.has("unfrozen_parameters");
  bool is_reentrant = arguments.has(own) ? is_on(arguments, own) : by_default;
  if (trainer.defaults.project == TrainerProject::kFactory) {
    is_reentrant = arguments.text_or("use_reentrant_gc", "true") == "true" && !is_sharded;
  }
  if (is_on(arguments, "fsdp_config.activation_checkpointing")) {
    is_reentrant = false;
    if (run.plan.zero > 0 && run.job.profile.fsdp_version == 2 &&
        trainer.defaults.fsdp_ends != "tail_with_head" &&
        trainer.defaults.project != TrainerProject::kAxolotl) {
      want(run, "checkpoints_layer_parts", "true", library);
    }
  }
  if (run.plan.recompute.granularity == RecomputeGranularity::kFull) {
    want(run, "reentrant_checkpoint", is_reentrant ? "true" : "false", library);
  }
}

// A loss that is not described is refused with what estimates the run without it.
void read_loss(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const LossWords loss = loss_of(trainer);
  if (loss.kind.empty()) {
    refuse(run,
           shown_setting(trainer.arguments, "loss_type") + ": nll and chunked_nll are described");
    return;
  }
  if (!loss.because.empty()) {
    run.notes.push_back(loss.because);
  }
  want(run, "head_loss", loss.kind, library);
}

// Texts behind each other in one row: FlashAttention is told where they begin, PyTorch's kernels
// take a mask.
void read_layout(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const bool is_packed =
      first_on(trainer.arguments,
               {"sample_packing", "neat_packing", "padding_free", "batch_flattening"}) != nullptr ||
      (trainer.defaults.project != TrainerProject::kFactory && is_on(trainer.arguments, "packing"));
  const bool is_flash = uses_flash_attention(trainer.arguments);
  const bool is_in_windows = is_flash && is_on(trainer.arguments, "gemma4_hybrid_attn_impl");
  if (is_packed && (!is_flash || is_in_windows)) {
    want(run, "packed_sequences", "true", library);
  }
  want(run, "attention_backend",
       is_in_windows ? "flash_in_windows"
       : is_flash    ? "flash"
                     : "auto",
       library);
}

// transformers 5.17 trainer_optimizer.py: adamw_torch is PyTorch's AdamW as it comes, by lists.
void read_update(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const RunArguments& arguments = trainer.arguments;
  take_program_optimizer(trainer, run, library);
  const std::string word =
      arguments.text_or("optimizer", arguments.text_or("optim", "adamw_torch_fused"));
  if (uses_muon(trainer)) {
    want(run, "fused_optimizer", "false", library);
  } else if (word == "adamw_torch" || word == "adamw_hf") {
    want(run, "fused_optimizer", "false", library);
    want(run, "foreach_optimizer", "true", library);
  }
}

}  // namespace

RunReading read_transformers_run(const RunSettings& settings, const ClusterSpec& cluster,
                                 const Library& library) {
  const RunArguments arguments(settings.file, settings.arguments,
                               argument_table(library, "transformers"));
  const TrainerFile trainer = {
      .arguments = arguments, .file = settings.file, .defaults = defaults_of(settings.trainer)};
  RunReading run;
  run.framework = "transformers";
  run.uses = arguments.uses();
  run.job.cluster = cluster;
  if (!settings.undescribed.empty()) {
    refuse(run, settings.undescribed);
  }
  if (!settings.model.empty()) {
    run.job.model = library.model(settings.model).model;
  }
  read_trainer(trainer, run);
  check_launcher(arguments, run);
  const std::int64_t ranks = cluster.world_size();
  const bool is_sharded = uses_fsdp(trainer, ranks);
  run.plan.zero = is_sharded ? 3 : 0;
  read_parallelism(trainer, ranks, run);
  run.plan.micro_batch =
      micro_batch_of(trainer).value_or(trainer.defaults.micro_batch * sequences_of_sample(trainer));
  run.batch_stated = true;
  run.job.global_batch =
      run.plan.micro_batch * run.plan.dp * steps_of(trainer, run.plan.micro_batch, run.plan.dp);
  if (take_profile(run, library)) {
    if (is_sharded) {
      read_fsdp(trainer, run, library);
    }
    read_types(trainer, is_sharded, run, library);
    read_checkpoints(trainer, is_sharded, run, library);
    read_activation_offload(trainer, run, library);
    read_tiles(trainer, run, library);
    if (run.plan.tp > 1 && trainer.defaults.project == TrainerProject::kAxolotl) {
      want(run, "tensor_parallel_dtensors", "false", library);  // of transformers 5.14.1
    }
    read_parts(trainer, run, library);
    read_expert_kernels(trainer, run, library);
    read_packed_experts(trainer, run, library);
    read_dispatcher(run, library);
    read_fake_quantization(trainer, run, library);
    read_loss(trainer, run, library);
    read_objective(trainer, run, library);
    read_products(trainer, run, library);
    read_liger(trainer, run, library);
    read_adapter_kernels(trainer, run, library);
    read_mixers(trainer, run, library);
    read_layout(trainer, run, library);
    read_update(trainer, run, library);
    if (trainer.defaults.project == TrainerProject::kFactoryV1) {
      read_version_1(trainer, is_sharded, run, library);
    }
    read_rows(trainer, run, library);
    read_loss_chunk(settings, trainer, run, library);
  }
  read_environment(settings, library, run);
  return run;
}

}  // namespace shardplan
