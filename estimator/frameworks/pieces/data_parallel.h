// PyTorch's DistributedDataParallel, whoever wraps a model in it: buckets, flat tensors from which
// gradients are summed beside the gradients themselves. Sources: PyTorch 2.11
// torch/nn/parallel/distributed.py _ddp_init_helper, torch/csrc/distributed/c10d/reducer.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "estimator/time/update_times.h"

namespace shardplan {

inline constexpr std::string_view kBucketsRow = "ddp.buckets";
inline constexpr std::string_view kBucketsFormula =
    "Nt: flat tensors from which gradients are summed";

// Bytes of the buckets that are made anew behind the first reduction, in the order in which
// gradients come (compute_bucket_assignment_by_size): each ends with the gradient that reaches
// `least`. The buckets before them are one.
std::vector<std::int64_t> rebuilt_buckets(std::span<const std::int64_t> gradients,
                                          std::int64_t least);

// Gradients go into their buckets, divided by the ranks, and come back: elements read and written
// (mark_variable_ready_dense, finalize_bucket_dense).
inline constexpr double kBucketPasses = 2 + 2;
// What stays visible of one reduction of all gradients, beside the backward pass that makes them;
// nothing runs beside that of the last one, which has such a share of the elements.
double visible_reduction_s(const RankUpdate& update, const MicrobatchWork& work, double last_share);

}  // namespace shardplan
