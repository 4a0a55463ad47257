// What PyTorch's caching allocator counts as allocated beyond the sizes of a stage's lasting
// tensors: a block whose rest is too small to split off counts whole.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/allocation.h"
#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan::megatron {

struct AllocatorTails {
  std::int64_t start_up_bytes = 0;   // parameters, gradient buffers, main parameters
  std::int64_t optimizer_bytes = 0;  // both moments, made by the first optimizer step
  std::int64_t step_bytes = 0;       // one more fp32 list, during an unfused step; else 0
  friend bool operator==(const AllocatorTails&, const AllocatorTails&) = default;
};

// Megatron-core's. `shard`: on which of the ranks that share the optimizer's tensors. Without
// events where rows of the state say what is built.
BuiltStage built_stage(const Job& job, const Plan& plan, const StageLayout& stage,
                       const StageTensors& tensors, std::int64_t shard);

// The same with the tensors of a plain optimizer, whatever the plan's is.
BuiltStage start_up(const Job& job, const Plan& plan, const StageLayout& stage,
                    const StageTensors& tensors, std::int64_t shard);

// Megatron-core's start-up, by sizes of blocks where addresses decide nothing. `tensors`, here and
// below: what is updated.
AllocatorTails allocator_tails(const Job& job, const Plan& plan, const StageLayout& stage,
                               const StageTensors& tensors);

// The same, replayed tensor by tensor.
AllocatorTails replayed_tails(const Job& job, const Plan& plan, const StageLayout& stage,
                              const StageTensors& tensors);

}  // namespace shardplan::megatron
