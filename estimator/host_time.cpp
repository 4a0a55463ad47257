#include "estimator/host_time.h"

#include <array>

#include "estimator/units.h"

namespace shardplan {
namespace {

constexpr double kMicro = 1e-6;

constexpr HostCost microseconds(double forward, double backward) {
  return {.forward_s = forward * kMicro, .backward_s = backward * kMicro};
}

// torchtitan's own layers take less than that measurement says, by as much as 24 whole runs bound
// by the host need (data/measured/h200_frameworks.jsonl, frameworks_h200.jsonl); what sharding, tp
// and cp add does not.
constexpr double kTitanLayerInRuns = 0.8;

constexpr HostCost titan_layer(double forward, double backward) {
  return microseconds(kTitanLayerInRuns * forward, kTitanLayerInRuns * backward);
}

// What DeepSpeed's hooks add to a layer, and to the ends of a microbatch: ZeRO-2's at gradients,
// ZeRO-3's at modules and gradients (data/measured/deepspeed_h200.jsonl, host-...).
constexpr HostCost kZero2Hooks = microseconds(0, 1700);
constexpr HostCost kZero3Hooks = microseconds(2900, 4000);
constexpr HostCost kZero3Ends = microseconds(5000, 9000);

// data/measured/host_cost_h200.json: torchtitan v0.2.2 and Megatron-core v0.16.1 on
// PyTorch 2.11, tensors so small that the host decides; one layer is a quarter of the difference
// between models of 2 and 6. `sharded` is with FSDP2; tensor and context parallelism come on top
// of that, `both` where they meet.
struct HostRow {
  MemoryModel model;
  bool compiled;
  HostCost layer;
  HostCost sharded;
  HostCost tensor_parallel;
  HostCost context_parallel;
  HostCost both;
  HostCost expert;  // of a layer whose experts run one after the other
  HostCost ends;
  double update_s = 0;  // clipping and optimizer, a layer
};
constexpr std::array<HostRow, 5> kHostRows = {{
    {.model = MemoryModel::kTorchtitan,
     .compiled = false,
     .layer = titan_layer(1880, 1520),
     .sharded = microseconds(1260, 680),
     .tensor_parallel = microseconds(2840, 5160),
     .context_parallel = microseconds(1090, 2140),
     .both = microseconds(1280, 2120),
     .expert = {},
     .ends = microseconds(4000, 4500),
     .update_s = 600 * kMicro},
    {.model = MemoryModel::kTorchtitan,
     .compiled = true,
     .layer = titan_layer(900, 1890),
     .sharded = microseconds(1260, 680),
     .tensor_parallel = microseconds(610, 1360),
     .context_parallel = microseconds(50, 540),
     .both = {},
     .expert = {},
     .ends = microseconds(3000, 2500),
     .update_s = 500 * kMicro},
    {.model = MemoryModel::kMegatronLocal,
     .compiled = false,
     .layer = microseconds(1380, 2210),
     .sharded = {},
     .tensor_parallel = microseconds(640, 0),
     .context_parallel = {},
     .both = {},
     // Not measured: a third of a dense layer, two of its four products and its SwiGLU.
     .expert = microseconds(460, 740),
     .ends = microseconds(2700, 3500),
     .update_s = 350 * kMicro},
    // An eager layer with norms and rotary embedding in Triton; collectives 40 a call.
    {.model = MemoryModel::kNanotron,
     .compiled = false,
     .layer = microseconds(1240, 1240),
     .sharded = {},
     .tensor_parallel = microseconds(160, 240),
     .context_parallel = {},
     .both = {},
     .expert = {},
     .ends = {},
     .update_s = 0 * kMicro},
    // Hugging Face's eager layer under ZeRO-1: a sixteenth of the difference between models of 2
    // and 6 layers and four microbatches (data/measured/deepspeed_h200.jsonl, host-z1-...).
    {.model = MemoryModel::kDeepspeed,
     .compiled = false,
     .layer = microseconds(900, 1600),
     .sharded = {},
     .tensor_parallel = {},
     .context_parallel = {},
     .both = {},
     .expert = {},
     .ends = microseconds(1700, 2500),
     .update_s = 0 * kMicro},
}};

const HostRow* row_of(const FrameworkProfile& profile) {
  for (const HostRow& row : kHostRows) {
    if (row.model == profile.memory_model && row.compiled == profile.compile) {
      return &row;
    }
  }
  return nullptr;
}

void add(HostCost& cost, double count, const HostCost& more) {
  cost.forward_s += count * more.forward_s;
  cost.backward_s += count * more.backward_s;
}

}  // namespace

double shardings_per_microbatch(const Job& job, const Plan& plan) {
  if (job.profile.memory_model != MemoryModel::kTorchtitan || plan.zero != 3) {
    return 0;
  }
  return gathers_once(job.profile, plan)
             ? static_cast<double>(data_parallel_size(job, plan) * plan.micro_batch) /
                   static_cast<double>(job.global_batch)
             : 1;
}

bool gathers_once(const FrameworkProfile& profile, const Plan& plan) {
  return profile.memory_model == MemoryModel::kTorchtitan && plan.pp > 1 &&
         profile.reshard_after_forward != ReshardAfterForward::kAlways;
}

HostCost host_cost(const Job& job, const Plan& plan, const LayerSpec& layer) {
  HostCost cost;
  const HostRow* row = row_of(job.profile);
  if (row == nullptr) {
    return cost;
  }
  add(cost, 1, row->layer);
  if (job.profile.memory_model == MemoryModel::kDeepspeed && plan.zero > 1) {
    add(cost, 1, plan.zero == 2 ? kZero2Hooks : kZero3Hooks);
  }
  add(cost, shardings_per_microbatch(job, plan), row->sharded);
  add(cost, plan.tp > 1 ? 1 : 0, row->tensor_parallel);
  add(cost, plan.cp > 1 ? 1 : 0, row->context_parallel);
  add(cost, plan.tp > 1 && plan.cp > 1 ? 1 : 0, row->both);
  if (layer.is_moe) {
    add(cost, static_cast<double>(div_ceil(job.model.moe.num_experts, plan.ep)), row->expert);
  }
  return cost;
}

// Eager torchtitan's choice by operators passes every operator through Python once more: 900 us
// forward, and 3950 us instead of a forward's 3140, 2764 in whole runs, backward (the same file).
HostCost host_replay_cost(const Recompute& recompute, bool compiled, double forward_s) {
  const bool by_operator = recompute.policy == "every_second_matmul";
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone: return {};
    case RecomputeGranularity::kFull: return {.forward_s = 0, .backward_s = forward_s};
    case RecomputeGranularity::kSelective: break;
  }
  if (by_operator) {
    return compiled ? HostCost{}
                    : HostCost{.forward_s = 900 * kMicro, .backward_s = 1.43 * forward_s};
  }
  if (recompute.policy == "every_second_layer") {
    return {.forward_s = 0, .backward_s = forward_s / 2};
  }
  // Modules of each layer: a checkpoint around core_attn or mlp, which keeps the generators' states
  // and runs the module again, takes 0.7 to 1 ms a layer of Megatron-core
  // (data/measured/frameworks_h200.jsonl, host-smol-*).
  constexpr double kCheckpoint = 700 * kMicro;
  return {.forward_s = 0, .backward_s = forward_s > 0 ? kCheckpoint : 0};
}

HostCost host_cost_of_ends(const Job& job, const Plan& plan) {
  HostCost cost;
  if (const HostRow* row = row_of(job.profile)) {
    add(cost, 1, row->ends);
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed && plan.zero == 3) {
    add(cost, 1, kZero3Ends);
  }
  return cost;
}

double host_update_s(const Job& job) {
  const HostRow* row = row_of(job.profile);
  return row == nullptr ? 0 : row->update_s;
}

}  // namespace shardplan
