// How DeepSpeed's ZeRO optimizers reduce gradients. Sources, read in deepspeedai/DeepSpeed at
// edaa7221 (0.19.6): runtime/zero/stage_1_and_2.py
// (reduce_independent_p_g_buckets_and_remove_grads, copy_grads_in_partition, reduce_ipg_grads,
// allreduce_bucket, setup_buckets, independent_gradient_partition_epilogue),
// runtime/comm/coalesced_collectives.py (reduce_scatter_coalesced).
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/job.h"

namespace shardplan {

// Elements in the parameters' dtype.
struct DeepspeedBuckets {
  std::int64_t elements = 0;  // of the contiguous buffers: R, twice with overlap_comm
  std::int64_t flat = 0;      // flattened to be reduced: R, or a tensor that is larger
  std::int64_t largest_tensor = 0;
  bool fills = false;  // N > R: reduced before the backward pass ends
  // Whole tensors that a rank's N/S reaches into: of the fullest rank, and of those that begin with
  // the first tensor.
  std::int64_t partition = 0;
  std::int64_t first_partition = 0;
};
DeepspeedBuckets deepspeed_buckets(const Job& job, const Plan& plan);

// Before gradients are flattened ZeRO-1 and 2 look for infinities in one tensor's part after the
// other (_has_inf_or_nan), then take its norm in fp64 (get_grad_norm_direct). ZeRO-1's .grads still
// hold the buckets.
struct DeepspeedCheck {
  std::int64_t elements = 0;  // of the largest tensor's part
  std::int64_t buckets_bytes = 0;

  // fp32 copy, masks of either kind and of both, and that in fp32.
  std::int64_t peak_bytes() const { return (4 + 1 + 1 + 1 + 4) * elements + buckets_bytes; }
};
// `parameters`: elements of the model.
DeepspeedCheck deepspeed_check(const Job& job, const Plan& plan, const DeepspeedBuckets& buckets,
                               std::int64_t parameters);

// A row of the state that stands for it where it needs more than what follows.
inline constexpr std::string_view kOverflowCheckRow = "step.overflow_check";

// ZeRO-3 overlaps where nothing says otherwise (runtime/zero/config.py, overlap_comm_valid).
bool overlaps_collectives(const Job& job, const Plan& plan);

}  // namespace shardplan
