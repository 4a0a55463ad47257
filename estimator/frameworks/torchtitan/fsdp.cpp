#include "estimator/frameworks/torchtitan/fsdp.h"

#include <numeric>

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16

}  // namespace

std::int64_t ParameterGroup::bytes() const {
  return std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
}

// A group of one rank gathers nothing: FSDPParamGroup.unshard returns an empty result. Parameters
// in bf16 are copied into the output as they are (_get_param_all_gather_inputs).
void FullyShard::gather(ParameterGroup& group, AllocationStream stream) {
  if (group.shard == 1) {
    return;
  }
  TapeTensor input = tape_.make(group.is_bf16 ? 0 : div_ceil(group.bytes(), group.shard), stream);
  group.gather_output = tape_.make(group.bytes(), stream);
  tape_.free(input);
}

// A group of one rank casts its parameters one by one instead (wait_for_unshard).
void FullyShard::unshard(ParameterGroup& group, bool holds_output) {
  std::vector<TapeTensor> copies;
  TapeTensor cast;
  for (const std::int64_t weight : group.weights) {
    if (group.shard == 1 && !group.is_bf16) {
      tape_.replace(cast, weight);
    }
    group.unsharded.push_back(tape_.make(weight));
    if (group.splits_rows) {  // rank by rank first, then row by row
      copies.push_back(tape_.make(weight));
    }
  }
  tape_.free(cast);
  free_all(copies);
  if (holds_output) {
    tape_.free(held_output_);
    held_output_ = std::exchange(group.gather_output, {});
  } else {
    tape_.free(group.gather_output);
  }
}

void FullyShard::free_all(std::vector<TapeTensor>& tensors) {
  for (TapeTensor& tensor : tensors) { tape_.free(tensor); }
  tensors.clear();
}

void FullyShard::reshard(ParameterGroup& group) {
  free_all(group.unsharded);
}

// Chunks of each gradient joined, rank by rank. The last gradient, which a variable still names.
TapeTensor FullyShard::join_chunks(std::vector<TapeTensor>& gradients) {
  TapeTensor named;
  for (TapeTensor& gradient : gradients) {
    tape_.free(named);
    named = gradient;
    gradient = tape_.make(named.bytes);
  }
  return named;
}

// foreach_reduce frees the gradients before it allocates its output, but for the one of the last
// parameter, which the variable of a loop still names.
void FullyShard::reduce(ParameterGroup& group) {
  reshard(group);
  tape_.free(reduction_input_);
  std::vector<TapeTensor>& last = group.accumulated.empty() ? group.gradients : group.accumulated;
  TapeTensor named = group.splits_rows ? join_chunks(last) : TapeTensor{};
  reduction_input_ = tape_.make(kWiden * group.bytes());
  if (named.id == 0 && group.ends_with_table && !last.empty()) {
    named = last.back();
    last.pop_back();
  }
  free_all(group.gradients);
  free_all(group.accumulated);
  const std::int64_t share = kWiden * div_ceil(group.bytes(), group.shard);
  TapeTensor output = tape_.make(share, AllocationStream::kReduce);
  if (group.shard == 1) {  // divided by the factor, 1, and copied
    TapeTensor divided = tape_.make(share, AllocationStream::kReduce);
    tape_.free(divided);
  }
  tape_.free(named);
  if (group.is_bf16) {  // cast to the parameters' dtype
    TapeTensor cast = tape_.make(share / kWiden, AllocationStream::kReduce);
    std::swap(output, cast);
    if (group.keeps_reduction) {
      kept_reductions_.push_back(cast);
    } else {
      tape_.free(cast);
    }
  }
  if (group.sharded_gradient.id == 0 && !group.is_shared) {
    group.sharded_gradient = output;
  } else if (group.keeps_reduction && !group.is_bf16) {  // once it has been added
    kept_reductions_.push_back(output);
  } else {
    tape_.free(output);
  }
}

void FullyShard::accumulate(ParameterGroup& group) {
  const bool is_first = group.accumulated.empty();
  for (TapeTensor& gradient : group.gradients) {
    if (is_first) {
      group.accumulated.push_back(tape_.make(kWiden * gradient.bytes));
    }
    tape_.free(gradient);
  }
  group.gradients.clear();
}

}  // namespace shardplan::torchtitan
