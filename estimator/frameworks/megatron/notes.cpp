#include "estimator/frameworks/megatron/notes.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/frameworks/megatron/shared_streams.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/frameworks/megatron/weights.h"
#include "estimator/plan/expert_loads.h"
#include "estimator/plan/units.h"

namespace shardplan::megatron {
namespace {

std::string fsdp_assumption(const Job& job, const Plan& plan) {
  std::string text = "zero " + std::to_string(plan.zero) +
                     ": Megatron-FSDP, whose buffers of layers follow its source";
  if (!job.profile.overlap_grad_reduce) {
    text += plan.zero == 2 ? "; without overlap_grad_reduce all gradients are one bucket"
                           : "; without overlap_grad_reduce embedding and head are one bucket";
  }
  if (has_double_buffers(job) && plan.zero == 3) {
    text += "; its double buffers were read of its source, not measured";
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
    const StageTensors tensors = stage_tensors(whole, plan, stage.layout, buffers(whole, plan));
    std::int64_t made = 0;
    for (const StateRow& row : state_of_stage(whole, plan, stage.layout, tensors, {}).rows) {
      made += row.made_by_first_step ? row.total_bytes() : 0;
    }
    most = std::max(most, made - stage.state.bytes.made_by_first_step);
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

// What was measured: data/measured/README.md, shared_experts_h200.
constexpr std::string_view kSharedStreamAssumption =
    "moe_shared_expert_overlap: every layer has a stream of its own, whose free blocks are counted "
    "outside the allocator, by its source; three measured runs reserved 1.3 to 3.8 GiB more than "
    "without it, of which this rule and the gate's workspaces give 0.9 to 1.4";

// No run with adapters was measured.
constexpr std::string_view kAdapterAssumption =
    "adapters: rows of Megatron-SWIFT's adapters and of frozen layers follow the sources of "
    "mcore-bridge and Transformer Engine 2.9 and are not measured; what the host needs to launch "
    "adapters is not counted in step times";

// core_v0.16.1 core/nccl_allocator.py, nccl_alloc_plug. What ncclMemAlloc of NCCL 2.28.9 takes of
// an H200, alone on its host, was measured: as much as is asked for in steps of 2 MiB.
constexpr std::string_view kRegisteredAssumption =
    "nccl_ub: segments of buffers that NCCL registers are replayed with the others; ncclMemAlloc "
    "was measured to take no more for one GPU, and what registering them over several takes is not "
    "counted";

constexpr std::string_view kDecoupledAssumption =
    "decoupled_in_proj: the weight of the second norm, hidden numbers a layer, is not counted, and "
    "the smaller product's as its precision is";

// No run of a hybrid was measured.
constexpr std::string_view kHybridAssumption =
    "layers of Mamba-2: rows, kernels and launches follow the sources of Megatron-LM and mamba_ssm "
    "2.3.2 and are not measured";

}  // namespace

void add_assumptions(const Job& job, const Plan& plan, const PlanPieces& pieces,
                     std::vector<Assumption>& assumptions) {
  if (is_megatron_fsdp(job, plan)) {
    assumptions.push_back({.text = fsdp_assumption(job, plan)});
    const std::int64_t bytes = whole_moment_bytes(job, plan, pieces);
    if (bytes > 0) {
      assumptions.push_back({.text = whole_moment_text(plan, bytes)});
    }
  }
  if (has_shared_streams(job)) {
    assumptions.push_back({.text = std::string(kSharedStreamAssumption)});
  }
  if (job.profile.nccl_ub) {
    assumptions.push_back({.text = std::string(kRegisteredAssumption)});
  }
  if (job.profile.decoupled_in_proj) {
    assumptions.push_back({.text = std::string(kDecoupledAssumption)});
  }
  if (is_hybrid(job)) {
    assumptions.push_back({.text = std::string(kHybridAssumption)});
  }
  if (trains_adapters(job)) {
    assumptions.push_back({.text = std::string(kAdapterAssumption)});
  }
  if (const double spread = load_spread(job, plan);
      spread > 0 && job.profile.moe_load_spread == 0) {
    assumptions.push_back({.text = load_assumption(spread)});
  }
}

std::vector<std::string> not_counted(const FrameworkProfile& profile) {
  return {"evaluation", "checkpoint save and load",
          profile.cuda_graphs == CudaGraphs::kNone ? "CUDA graphs"
                                                   : "the memory pools of this plan's CUDA graphs",
          "other processes on the GPU"};
}

}  // namespace shardplan::megatron
