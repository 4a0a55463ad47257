// The weights of a stage of Megatron-core as single tensors, in the order in which its modules make
// them, and the tensors of its optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/job.h"

namespace shardplan::megatron {

// Elements on one rank.
struct StageWeights {
  std::vector<std::vector<std::int64_t>> frozen;    // of each chunk, beside adapters
  std::vector<std::vector<std::int64_t>> of_chunk;  // what is updated: dense, then expert
  std::vector<std::int64_t> of_optimizer;           // this rank's share
  std::size_t second_moments = 0;  // so many of the optimizer's, the first ones, have one
};

// `tensors`: what is updated. `shard`: on which of the ranks that share the optimizer's tensors.
StageWeights stage_weights(const Job& job, const Plan& plan, const StageLayout& stage,
                           const StageTensors& tensors, std::int64_t shard);

// The contiguous buffers: with overlapped reduction in buckets, and weights in fp8 apart.
ContiguousBuffers buffers(const Job& job, const Plan& plan);

}  // namespace shardplan::megatron
