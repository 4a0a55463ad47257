// How DeepSpeed's ZeRO optimizers reduce and check gradients. Sources, read in the released 0.19.6:
// runtime/zero/stage_1_and_2.py (get_data_parallel_partitions, average_tensor,
// allreduce_and_scatter, allreduce_bucket, has_overflow), runtime/zero/config.py
// (overlap_comm_valid).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "estimator/plan/job.h"
#include "estimator/time/elementwise.h"

namespace shardplan::deepspeed {

// Elements [begin, end) of the flat tensor.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t elements() const { return end - begin; }
};
// Ranges of tensors that lie one behind the other; `tensors`: the elements of each.
std::vector<FlatRange> deepspeed_ranges(std::span<const std::int64_t> tensors);

// Elements of one rank's part of the flat tensor, which is aligned to pairs of them
// (nccl_start_alignment_factor).
std::int64_t deepspeed_share(std::span<const std::int64_t> tensors, std::int64_t ranks);

// Elements of the whole tensors that parts reach into, by rank: gradients that it keeps.
std::vector<std::int64_t> deepspeed_kept_elements(std::span<const FlatRange> tensors,
                                                  std::int64_t share, std::int64_t ranks);

// Data-parallel ranks, one of which has the most allocated: all, if they are few; of more those
// that keep more gradients than all behind them, which have reduced theirs sooner, or than all
// before them, which ZeRO-1 reduces sooner where nothing overlaps; of all ranks, and of those that
// reach into no tensor larger than a bucket, whose gradients wait in full. Buckets that hold hardly
// a tensor, and mixtures of experts, may leave out one that has up to 0.3 % more. Of ZeRO-3,
// and without ZeRO, the first: all are alike.
std::vector<std::int64_t> deepspeed_full_ranks(const Job& job, const Plan& plan);

// What ZeRO-1 and 2 copy flat, one copy after the other, to reduce the gradients of these tensors:
// runs that one rank keeps, of `share` elements each, until they exceed `most`; one run alone is
// reduced in place (average_tensor, allreduce_and_scatter).
std::vector<std::int64_t> deepspeed_flat_copies(std::span<const FlatRange> tensors,
                                                std::int64_t share, std::int64_t most);

// The bucket's kernels, per gradient: copied in, divided by the number of ranks, copied flat
// (stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads, average_tensor,
// allreduce_bucket). ZeRO-1 does so once a step.
KernelBytes bucket_kernels(double element_bytes);

// Whether gathers and reductions run, and allocate, on streams of their own: overlap_comm, by
// default under ZeRO-3 (runtime/zero/config.py, overlap_comm_valid).
bool overlaps_collectives(const Job& job, const Plan& plan);

// With it ZeRO-1 and 2 reduce a full bucket beside the work that fills the next one, which waits
// for the one before (average_tensor, wait_stream). What is in the bucket when the embedding's
// gradient comes, the last of all, and that gradient have nothing left to run beside.
struct ReducedBeside {
  double of_elements = 0;  // share of all that is reduced beside a backward pass
  double of_backward = 0;  // share of the backward pass, by the elements whose gradients it makes
};
ReducedBeside reduced_beside(std::span<const std::int64_t> tensors, bool ties_tables,
                             std::int64_t bucket_elements);

// Whether ZeRO-1 and 2 copy gradients to look for what is not finite (_has_inf_or_nan).
bool copies_for_overflow_check(const Job& job, const Plan& plan);

}  // namespace shardplan::deepspeed
