// How DeepSpeed's ZeRO optimizers reduce gradients. Sources, read in deepspeedai/DeepSpeed at
// edaa7221 (0.19.6): runtime/zero/stage_1_and_2.py
// (reduce_independent_p_g_buckets_and_remove_grads, copy_grads_in_partition, reduce_ipg_grads,
// allreduce_bucket, setup_buckets, independent_gradient_partition_epilogue),
// runtime/comm/coalesced_collectives.py (reduce_scatter_coalesced).
#pragma once

#include <cstdint>

#include "estimator/job.h"

namespace shardplan {

// Elements in the parameters' dtype.
struct DeepspeedBuckets {
  std::int64_t elements = 0;  // of the contiguous buffers: R, twice with overlap_comm
  std::int64_t flat = 0;      // flattened to be reduced: R, or a tensor that is larger
  bool fills = false;         // N > R: reduced before the backward pass ends
  // Whole tensors that a rank's N/S reaches into: of the fullest rank, and of those that begin with
  // the first tensor.
  std::int64_t partition = 0;
  std::int64_t first_partition = 0;
};
DeepspeedBuckets deepspeed_buckets(const Job& job, const Plan& plan);

// ZeRO-3 overlaps where nothing says otherwise (runtime/zero/config.py, overlap_comm_valid).
bool overlaps_collectives(const Job& job, const Plan& plan);

}  // namespace shardplan
