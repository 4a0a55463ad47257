#include "data/arguments/trainer_parallel.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "data/arguments/trainer_kernels.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;

// The setting that divides sequences by Ulysses' exchanges, by project; nullptr: none does.
// LLaMA-Factory ff6d4d1 src/llamafactory/v1/config/training_args.py; ms-swift 3602360
// swift/arguments; accelerate 1.15 utils/dataclasses.py ParallelismConfig (sp, under DeepSpeed).
const char* ulysses_setting(const TrainerFile& trainer) {
  constexpr const char* kOfLauncher = "accelerate.parallelism_config.parallelism_config_sp_size";
  const char* own = nullptr;
  if (trainer.defaults.project == TrainerProject::kFactoryV1) {
    own = "cp_size";
  } else if (trainer.defaults.project == TrainerProject::kSwift) {
    own = "sequence_parallel_size";
  }
  return own != nullptr && trainer.arguments.has(own) ? own : kOfLauncher;
}

// The size that accelerate's parallelism_config gives a dimension of the mesh; 1 if it gives none.
std::int64_t size_in_mesh(const TrainerFile& trainer, const std::string& name) {
  return trainer.arguments.integer_or(
      "accelerate.parallelism_config.parallelism_config_" + name + "_size", 1, 1, kMaxRanks);
}

// axolotl has its own key, and gives it to accelerate (utils/distributed.py
// build_parallelism_config).
std::int64_t tensor_ranks(const TrainerFile& trainer) {
  return trainer.defaults.project == TrainerProject::kAxolotl &&
                 trainer.arguments.has("tensor_parallel_size")
             ? trainer.arguments.integer_or("tensor_parallel_size", 1, 1, kMaxRanks)
             : size_in_mesh(trainer, "tp");
}

// accelerate's ring (accelerator.py _prepare_cp, utils/dataclasses.py TorchContextParallelConfig),
// which the project's own exchanges exclude.
void read_ring(const TrainerFile& trainer, RunReading& run) {
  const std::int64_t ranks = size_in_mesh(trainer, "cp");
  if (ranks == 1) {
    return;
  }
  if (run.plan.cp > 1) {
    refuse(run, "parallelism_config_cp_size " + std::to_string(ranks) +
                    " beside sequences divided "
                    "over " +
                    std::to_string(run.plan.cp) +
                    " ranks by Ulysses' exchanges, which "
                    "accelerate refuses; one of both");
  }
  const std::string strategy =
      trainer.arguments.word_or("accelerate.parallelism_config.parallelism_config_cp_comm_strategy",
                                "allgather", {"allgather", "alltoall"});
  run.plan.cp = ranks;
  run.plan.cp_method = strategy == "allgather" ? CpMethod::kAllGather : CpMethod::kRing;
}

// axolotl's ring (067b021 utils/schemas/validation.py check_context_parallel_size,
// validate_ring_attn_func; monkeypatch/ring_attn/patch.py): of packed sequences one head of keys
// after the other, of others a function that PyTorch compiles.
void read_ring_of_axolotl(const TrainerFile& trainer, RunReading& run) {
  const char* const setting = "context_parallel_size";
  const RunArguments& arguments = trainer.arguments;
  const std::int64_t ranks = trainer.defaults.project == TrainerProject::kAxolotl
                                 ? arguments.integer_or(setting, 1, 1, kMaxRanks)
                                 : 1;
  if (ranks == 1) {
    return;
  }
  run.plan.cp = ranks;
  run.plan.cp_method = CpMethod::kAllGather;
  const std::string function = arguments.text_or(
      "ring_attn_func", is_on(arguments, "sample_packing") ? "varlen_llama3" : "batch_ring");
  if (!uses_flash_attention(arguments)) {
    refuse(run, shown_setting(arguments, setting) +
                    " without FlashAttention, which axolotl asks for: attn_implementation "
                    "flash_attention_2 does");
  } else if (function != "varlen_llama3") {
    refuse(run, shown_setting(arguments, setting) + " with ring_attn_func " +
                    shown(function, Encoding::kUnchecked) +
                    ", which PyTorch compiles: varlen_llama3 is described, axolotl's own choice "
                    "with sample_packing");
  } else if (arguments.integer_or("heads_k_stride", 1, 1, kMaxRanks) > 1) {
    refuse(run, shown_setting(arguments, "heads_k_stride") +
                    ": one head of keys at a time is described");
  }
}

// axolotl's plugin (067b021 integrations/expert_parallel/plugin.py), where DeepEP is installed.
void read_dealt_experts(const TrainerFile& trainer, RunReading& run) {
  const char* const setting = "expert_parallel_size";
  if (trainer.defaults.project != TrainerProject::kAxolotl) {
    return;
  }
  run.plan.ep = trainer.arguments.integer_or(setting, 1, 1, kMaxRanks);
  if (run.plan.ep > 1) {
    run.notes.emplace_back(
        trainer.arguments
            .error(setting, "found " + std::to_string(run.plan.ep) +
                                ", took experts dealt to as many ranks by DeepEP; where deep_ep is "
                                "not installed axolotl deals none, and --ep 1 is that run")
            .what());
  }
}

// accelerate's sizes multiply to the number of processes (parallelism_config.py
// _validate_accelerator).
void check_mesh(const TrainerFile& trainer, std::int64_t ranks, RunReading& run) {
  const std::int64_t tp = size_in_mesh(trainer, "tp");
  const std::int64_t cp = size_in_mesh(trainer, "cp");
  const std::int64_t shards = size_in_mesh(trainer, "dp_shard");
  const std::int64_t product = tp * cp * shards * size_in_mesh(trainer, "dp_replicate");
  if (tp * cp > 1 && product != ranks) {
    refuse(run, "parallelism_config's sizes, whose product is " + std::to_string(product) + " of " +
                    std::to_string(ranks) +
                    " ranks: accelerate wants as many ranks; "
                    "parallelism_config_dp_shard_size, or --num-gpus " +
                    std::to_string(product));
  }
}

// Refuses sizes of other projects and methods of dividing sequences, as ring attention.
void refuse_others(const TrainerFile& trainer, RunReading& run) {
  constexpr std::array<std::pair<const char*, TrainerProject>, 5> kOwners = {{
      {"expert_parallel_size", TrainerProject::kAxolotl},
      {"context_parallel_size", TrainerProject::kAxolotl},
      {"tensor_parallel_size", TrainerProject::kAxolotl},
      {"cp_size", TrainerProject::kFactoryV1},
      {"sequence_parallel_size", TrainerProject::kSwift},
  }};
  for (const auto& [name, owner] : kOwners) {
    if (trainer.defaults.project != owner &&
        trainer.arguments.integer_or(name, 1, 1, kMaxRanks) > 1) {
      refuse(run, shown_setting(trainer.arguments, name) +
                      ": sequences, layers or weights divided over ranks");
    }
  }
  if (trainer.defaults.project == TrainerProject::kFactoryV1 && sequence_ranks(trainer) > 1 &&
      trainer.arguments.text_or("dist_config.name", "") == "deepspeed") {
    refuse(run, shown_setting(trainer.arguments, "cp_size") +
                    " under DeepSpeed, where LLaMA-Factory's version 1 divides no sequences; "
                    "dist_config.name fsdp2 does");
  }
  const std::string mode = trainer.arguments.text_or("cp_mode", "ulysses");
  if (mode != "ulysses") {
    refuse(run, shown_setting(trainer.arguments, "cp_mode") + ": ulysses is described");
  }
}

// ms-swift divides heads of keys and values as far as they go, the rest by ring attention
// (swift/sequence_parallel/sequence_parallel.py, _init_device_mesh).
void check_heads(const TrainerFile& trainer, std::int64_t ranks, RunReading& run) {
  const std::int64_t heads = run.job.model.num_kv_heads;
  if (trainer.defaults.project == TrainerProject::kSwift && heads > 0 &&
      std::gcd(heads, ranks) != ranks) {
    refuse(run, "sequence_parallel_size " + std::to_string(ranks) + " of a model with " +
                    std::to_string(heads) +
                    " heads of keys and values: ring attention between groups of " +
                    std::to_string(std::gcd(heads, ranks)) +
                    ", whose buffers are not described; a divisor of the heads is");
  }
}

// axolotl makes copies of what the shards that it is told leave of the ranks, and refuses sizes
// that leave some (utils/distributed.py _get_parallel_config_kwargs).
std::int64_t replicas_of_axolotl(const TrainerFile& trainer, std::int64_t dp, RunReading& run) {
  const std::int64_t own = trainer.arguments.integer_or("dp_shard_size", 1, 1, kMaxRanks);
  const std::int64_t shards = own * run.plan.ep;  // what is no expert is shared by all of both
  const std::int64_t stated = trainer.arguments.integer_or("dp_replicate_size", 1, 1, kMaxRanks);
  if (own == 1) {
    return stated;
  }
  const bool fits = stated > 1 ? shards * stated == dp : dp % shards == 0;
  if (!fits) {
    refuse(run, "dp_shard_size " + std::to_string(own) + " and dp_replicate_size " +
                    std::to_string(stated) + " over " + std::to_string(dp) +
                    " data-parallel ranks: axolotl wants as many; other sizes, or --num-gpus " +
                    std::to_string(shards * stated * run.plan.tp * run.plan.cp));
    return 1;
  }
  return dp / shards;
}

// Without FSDP2 replicas are what data parallelism has anyway.
std::int64_t replicas_of(const TrainerFile& trainer, RunReading& run) {
  if (trainer.defaults.project == TrainerProject::kAxolotl) {
    return replicas_of_axolotl(trainer, run.plan.dp, run);
  }
  for (const char* const name :
       {"mp_replicate_size", "dp_replicate_size",
        "accelerate.parallelism_config.parallelism_config_dp_replicate_size"}) {
    if (trainer.arguments.has(name)) {
      return trainer.arguments.integer_or(name, 1, 1, kMaxRanks);
    }
  }
  return 1;
}

}  // namespace

std::int64_t sequence_ranks(const TrainerFile& trainer) {
  return trainer.arguments.integer_or(ulysses_setting(trainer), 1, 1, kMaxRanks);
}

void read_parallelism(const TrainerFile& trainer, std::int64_t ranks, RunReading& run) {
  refuse_others(trainer, run);
  run.plan.cp = sequence_ranks(trainer);
  run.plan.cp_method = CpMethod::kA2a;
  read_ring(trainer, run);
  read_ring_of_axolotl(trainer, run);
  read_dealt_experts(trainer, run);
  run.plan.tp = tensor_ranks(trainer);
  check_mesh(trainer, ranks, run);
  run.plan.dp = std::max<std::int64_t>(1, ranks / (run.plan.cp * run.plan.tp));
  if (run.plan.zero > 0) {
    run.plan.dp_replicate = replicas_of(trainer, run);
  }
  if (run.plan.cp > 1 && run.plan.cp_method == CpMethod::kA2a) {
    check_heads(trainer, run.plan.cp, run);
  }
}

// swift/trainers/utils.py, per_token_loss_func_sp.
void read_loss_chunk(const RunSettings& settings, const TrainerFile& trainer, RunReading& run,
                     const Library& library) {
  const auto found =
      std::ranges::find(settings.environment, "CELOSS_PARALLEL_SIZE", &Setting::name);
  if (sequence_ranks(trainer) > 1 && found != settings.environment.end() &&
      !found->values.empty()) {
    want(run, "loss_chunk_tokens", found->values.front(), library);
  }
}

}  // namespace shardplan
