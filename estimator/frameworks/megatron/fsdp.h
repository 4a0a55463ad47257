// What Megatron-FSDP (ZeRO-2 and 3 of Megatron) gathers and has in its reduction queue while a
// microbatch goes through a chunk, by the unit that runs.
// Source: Megatron-LM core_v0.16.1 core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py (hooks,
// suggested_communication_unit_size) and param_and_grad_buffer.py (_get_parameter_groups,
// GradReducePipeline, AllGatherPipeline).
#pragma once

#include <cstdint>

#include "estimator/frameworks/megatron/options.h"
#include "estimator/ledger/fsdp_buffers.h"
#include "estimator/ledger/stage_layout.h"
#include "estimator/time/update_times.h"

namespace shardplan::megatron {

// What every row of a layer's weights divides: a bucket ends at a multiple of that times the ranks
// (build_data_parallel_buffer_index, chunk_size_factor). At most kMostBucketElements, which no GPU
// holds.
inline constexpr std::int64_t kMostBucketElements = std::int64_t{1} << 40;
struct RowMultiples {
  std::int64_t dense = 1;
  std::int64_t expert = 1;  // of routed experts
};
RowMultiples row_multiples(const Job& job, const Plan& plan, BlockKind kind);

// Shares of what a rank of ZeRO-3 gathers and reduces. AllGatherPipeline.all_gather_params issues
// buckets in the model's order, so that a backward pass begins behind those ahead. `held`: elements
// that the rank has of what is divided.
LayerShares fsdp_shares(const Job& job, const Plan& plan, std::int64_t held);

// Of a chunk under ZeRO-3: what is gathered behind the optimizer's step for the next one.
std::int64_t fsdp_bytes_between_steps(const Job& job, const Plan& plan, const ChunkLayout& layout);

// --fsdp-double-buffer, which registered buffers ask for (core/distributed/fsdp/src/megatron_fsdp/
// param_and_grad_buffer.py, ParamAndGradBuffer.__init__).
inline bool has_double_buffers(const Job& job) {
  return job.profile.fsdp_double_buffer || job.profile.nccl_ub;
}

// Both buffers of a layer's parameters, and of its gradients, of a stage with fsdp_double_buffer:
// chunks share them by name (FixedPoolAllocator, _get_gbuf_name). 0 bytes without.
FsdpBucket double_buffers(const Job& job, const Plan& plan, const StageLayout& stage);

FsdpBuffers fsdp_buffers(const Job& job, const Plan& plan, const ChunkLayout& layout);

// The bucket that the head's backward allocates: 0 elements where it has none of its own.
struct HeadBucket {
  std::int64_t elements = 0;  // with padding
  Step born = Step::kBackwardLogits;
  bool is_held = false;  // until the embedding's gradients are there, too
};
HeadBucket head_bucket(const Job& job, const Plan& plan);
// Whether the head's gradient of a tied table waits, whole, for the embedding's.
bool holds_tied_gradient(const Job& job, const Plan& plan);

}  // namespace shardplan::megatron
