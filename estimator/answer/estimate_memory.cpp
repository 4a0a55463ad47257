#include "estimator/answer/estimate_memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>

#include "estimator/answer/allocator_totals.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/frameworks/fujii2024/formula.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/ledger/stage_state.h"
#include "estimator/plan/capacity.h"
#include "estimator/plan/expert_loads.h"
#include "estimator/plan/units.h"
#include "estimator/validity/validity.h"

namespace shardplan {
namespace {

// Moments and tensors outside the model, by name.
std::vector<std::string> not_counted(const FrameworkProfile& profile) {
  switch (profile.memory_model) {
    case MemoryModel::kFujii2024: return {};
    case MemoryModel::kMegatron:
    case MemoryModel::kMegatronLocal:
      return {"evaluation", "checkpoint save and load",
              profile.cuda_graphs == CudaGraphs::kNone
                  ? "CUDA graphs"
                  : "the memory pools of this plan's CUDA graphs",
              "other processes on the GPU"};
    case MemoryModel::kTorchtitan:
      return {"evaluation", "checkpoint save and load", "the compiler's own memory",
              "other processes on the GPU"};
    case MemoryModel::kNanotron:
      return {"evaluation", "checkpoint save and load", "gradient clipping's norms",
              "other processes on the GPU"};
    case MemoryModel::kDeepspeed:
      return {"evaluation", "checkpoint save and load", "other processes on the GPU"};
    case MemoryModel::kNative:
      return {"evaluation", "checkpoint save and load", "CUDA graphs",
              "other processes on the GPU"};
  }
  return {};
}

}  // namespace

std::int64_t card_bytes(const Job& job) {
  return job.profile.memory_model == MemoryModel::kFujii2024 ? nominal_capacity_bytes(job.cluster)
                                                             : device_capacity_bytes(job.cluster);
}

namespace {

std::string fsdp_assumption(const Job& job, const Plan& plan) {
  std::string text = "zero " + std::to_string(plan.zero) +
                     ": Megatron-FSDP, whose buffers of layers follow its source";
  if (!job.profile.overlap_grad_reduce) {
    text += plan.zero == 2 ? "; without overlap_grad_reduce all gradients are one bucket"
                           : "; without overlap_grad_reduce embedding and head are one bucket";
  }
  if (job.profile.gradient_accumulation_fusion && !fuses_weight_gradients(job, plan)) {
    text +=
        "; with --no-gradient-accumulation-fusion, without which the output layer's backward "
        "stops with an error where gradients are " +
        std::string(name_of(fsdp_gradient_dtype(plan))) + " (core/tensor_parallel/layers.py:566)";
  }
  return text;
}

// What moments of whole parameters add to the fullest rank.
std::int64_t whole_moment_bytes(const Job& job, const Plan& plan, const PlanPieces& pieces) {
  Job whole = job;
  whole.profile.fsdp_whole_moments = true;
  std::int64_t most = 0;
  for (const StagePieces& stage : pieces.stages) {
    const StateBytes bytes = stage_state(whole, plan, stage.layout).bytes;
    most = std::max(most, bytes.made_by_first_step - stage.state.bytes.made_by_first_step);
  }
  return most;
}

std::string whole_moment_text(const Plan& plan, std::int64_t bytes) {
  std::array<char, 32> gib{};
  std::snprintf(gib.data(), gib.size(), "%.1f",
                static_cast<double>(bytes) / static_cast<double>(kGiB));
  return "Transformer Engine 2.10 and 2.11 keep whole moments under Megatron-FSDP: " +
         std::string(plan.pp > 1 ? "up to " : "") + gib.data() + " GiB more on " +
         (plan.pp > 1 ? "a" : "every") + " rank (--set fsdp_whole_moments=true)";
}

// Reserved memory depends on the router, which no plan tells. What free routers took was measured
// of random weights (data/measured/README.md, loads_h100.jsonl).
std::string load_assumption(double spread) {
  std::array<char, 8> share{};
  std::snprintf(share.data(), share.size(), "%.1f", 100 * spread);
  return "experts: rows of a rank vary by chance alone, by " + std::string(share.data()) +
         " %; routers that have learnt nothing were measured to vary by 7 to 23 %, to allocate 2 "
         "to 4 % and to reserve 11 to 38 % more than this says, and published runs with such to "
         "take 9 to 24 % longer; --set moe_load_spread=0.2 counts such";
}

void add_fsdp_assumptions(const Job& job, const Plan& plan, const PlanPieces& pieces,
                          MemoryEstimate& estimate) {
  estimate.assumptions.push_back({.text = fsdp_assumption(job, plan)});
  const std::int64_t bytes = whole_moment_bytes(job, plan, pieces);
  if (bytes > 0) {
    estimate.assumptions.push_back({.text = whole_moment_text(plan, bytes)});
  }
}

void add_deepspeed_assumptions(const Job& job, const Plan& plan, MemoryEstimate& estimate) {
  const auto add = [&](const char* text) { estimate.assumptions.push_back({.text = text}); };
  add("every batch has an attention mask, as transformers' data collators make it: without one and "
      "without a key-value cache, transformers masks itself and repeats keys and values for every "
      "head");
  add("attention is scaled_dot_product_attention, which keeps no scores; transformers' eager "
      "attention keeps num_heads * sequence_length^2 of them in every layer");
  if (plan.offload.optimizer > 0 && job.profile.host_threads == 1) {
    add("the optimizer on the host has one thread a rank, which torchrun and accelerate set where "
        "OMP_NUM_THREADS is not set; --set host_threads=N counts N, up to the rank's share of the "
        "host's memory rate");
  }
}

MemoryEstimate memory_of(const Job& job, const Plan& plan, std::optional<std::int64_t> data_rank) {
  if (const ValidityRule* rule = first_broken_rule(job, plan)) {
    throw std::logic_error("estimate_memory: the plan breaks " + std::string(rule->name));
  }
  if (job.profile.memory_model == MemoryModel::kFujii2024) {
    return estimate_fujii2024(job, plan);
  }
  MemoryEstimate estimate;
  const PlanPieces pieces = plan_pieces(job, plan, data_rank);
  for (const StagePieces& stage : pieces.stages) {
    estimate.stages.push_back(stage_memory(job, plan, pieces.blocks, stage));
  }
  replay_stages(job, plan, pieces, estimate.stages);
  const auto worst = std::ranges::max_element(estimate.stages, {}, &StageMemory::device_used_bytes);
  estimate.worst_stage = worst - estimate.stages.begin();
  estimate.fit = fit_of(job, estimate.stages);
  if (is_megatron_fsdp(job, plan)) {
    add_fsdp_assumptions(job, plan, pieces, estimate);
  }
  if (const double spread = load_spread(job, plan);
      spread > 0 && job.profile.moe_load_spread == 0) {
    estimate.assumptions.push_back({.text = load_assumption(spread)});
  }
  if (job.profile.memory_model == MemoryModel::kTorchtitan && plan.precision == Precision::kFp8) {
    estimate.assumptions.push_back(
        {.text = "precision fp8: float8 linear layers keep their bf16 inputs; estimated as bf16"});
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    add_deepspeed_assumptions(job, plan, estimate);
  }
  estimate.not_counted = not_counted(job.profile);
  return estimate;
}

}  // namespace

MemoryEstimate estimate_memory(const Job& job, const Plan& plan) {
  return memory_of(job, plan, std::nullopt);
}

bool knows_data_ranks(const Job& job, const Plan& plan) {
  return job.profile.memory_model == MemoryModel::kDeepspeed && plan.zero < 3;
}

MemoryEstimate estimate_memory_of_rank(const Job& job, const Plan& plan, std::int64_t data_rank) {
  return memory_of(job, plan, data_rank);
}

}  // namespace shardplan
