// How DeepSpeed's ZeRO optimizers reduce gradients. Sources, read in deepspeedai/DeepSpeed at
// edaa7221 (0.19.6): runtime/zero/stage_1_and_2.py
// (reduce_independent_p_g_buckets_and_remove_grads, copy_grads_in_partition, reduce_ipg_grads,
// allreduce_bucket, setup_buckets, independent_gradient_partition_epilogue),
// runtime/comm/coalesced_collectives.py (reduce_scatter_coalesced).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "estimator/job.h"

namespace shardplan {

// Elements of the model's tensors in the order in which the optimizer has them in one flat tensor:
// the table; those of every layer; the final norm; the head, where it has a table of its own.
std::vector<std::int64_t> deepspeed_tensors(const ModelSpec& model);
// Of a layer: q, k, v, o, norms of q and of k where the model has them, gate, up, down, both norms.
std::vector<std::int64_t> deepspeed_layer_tensors(const ModelSpec& model);

// Elements [begin, end) of the flat tensor.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t elements() const { return end - begin; }
};
// Of every tensor of deepspeed_tensors.
std::vector<FlatRange> deepspeed_ranges(const ModelSpec& model);

// The rank whose N/S reaches into most, in whole tensors.
struct FullestPart {
  std::int64_t rank = 0;
  std::int64_t elements = 0;  // of these tensors
};
FullestPart deepspeed_fullest_part(const Job& job, const Plan& plan);

// What ZeRO-1 and 2 copy flat, one copy after the other, to reduce the gradients of these tensors:
// runs that one rank keeps, of `share` elements each, until they exceed `most`; one run alone is
// reduced in place (average_tensor, allreduce_and_scatter).
std::vector<std::int64_t> deepspeed_flat_copies(std::span<const FlatRange> tensors,
                                                std::int64_t share, std::int64_t most);

// Elements in the parameters' dtype.
struct DeepspeedBuckets {
  std::int64_t elements = 0;  // of the contiguous buffers: R, twice with overlap_comm
  // The largest flat copies of what is reduced while a block's gradients are made.
  std::int64_t flat_in_head = 0;
  std::int64_t flat_in_layers = 0;
  std::int64_t flat_at_end = 0;
  std::int64_t largest_tensor = 0;
  bool fills = false;          // N > R: reduced before the backward pass ends
  std::int64_t partition = 0;  // of the fullest part
  // ZeRO-1: what its reduction makes beyond all gradients and the buckets, less what it has freed.
  std::int64_t reduction = 0;
};
DeepspeedBuckets deepspeed_buckets(const Job& job, const Plan& plan);

// Whether gathers and reductions run, and allocate, on streams of their own: overlap_comm, by
// default under ZeRO-3 (runtime/zero/config.py, overlap_comm_valid).
bool overlaps_collectives(const Job& job, const Plan& plan);

}  // namespace shardplan
