// ZeRO-3 behind a gradient: the bucket that it is reduced from, its way to the host, and the
// optimizer's step.
#include "estimator/frameworks/deepspeed/partitioned.h"

#include <algorithm>
#include <utility>

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kFp64 = 8;

// runtime/zero/stage3.py, _constant_buffered_norm2.
constexpr std::int64_t kNormElements = 250'000'000;

}  // namespace

// __add_grad_to_ipg_bucket
void PartitionedZero::take(std::int64_t parameter, eager::Tensor gradient) {
  const std::int64_t elements = at(parameter).whole.elements;
  if (bucketed_elements_ > 0 && bucketed_elements_ + elements > bucket_elements_) {
    reduce_bucket();
  }
  if (bucketed_elements_ + elements <= bucket_elements_) {
    gradient = {};  // copied
  }
  at(parameter).gradient = std::move(gradient);
  bucket_.push_back(parameter);
  bucketed_elements_ += elements;
}

// reduce_scatter_coalesced: one tensor that ranks divide is reduced in place, others are copied
// flat.
void PartitionedZero::reduce_bucket() {
  std::int64_t elements = 0;
  for (const std::int64_t i : bucket_) { elements += ranks_ * at(i).part; }
  const bool in_place = bucket_.size() == 1 && at(bucket_.front()).whole.elements == elements;
  TapeTensor flat =
      make_as(tape_, TapeRow::kFlatCopy, in_place ? 0 : half_ * elements, reduce_stream_);
  std::ranges::sort(bucket_);
  for (const std::int64_t i : bucket_) {
    if (offloads_optimizer_) {
      move_to_host(at(i));
    }
    at(i).gradient = {};
  }
  tape_.free(leaving_, flat);
  bucket_.clear();
  bucketed_elements_ = 0;
}

// partition_grads: to the host, and from there or with what it has back for what follows; behind
// the last microbatch its norm is taken, 250 million elements at a time, and it leaves in fp32.
void PartitionedZero::move_to_host(const Parameter& parameter) {
  const bool accumulates = num_of_step_ > 1;
  TapeTensor before = leaving_;
  if (!accumulates) {
    tape_.free(before);
  }
  leaving_ = make_as(tape_, TapeRow::kOnItsWay, half_ * parameter.part, reduce_stream_);
  if (accumulates) {
    tape_.free(before);
  }
  if (!is_boundary_) {
    return;
  }
  norms_.push_back(make_as(tape_, TapeRow::kStepNorms, kFp64, reduce_stream_));
  for (std::int64_t begin = 0; begin < parameter.part; begin += kNormElements) {
    const std::int64_t elements = std::min(kNormElements, parameter.part - begin);
    TapeTensor wide = make_as(tape_, TapeRow::kStepNorms, kFp64 * elements, reduce_stream_);
    tape_.free(wide);
  }
  TapeTensor wide = make_as(tape_, TapeRow::kWideGradients, kFp32 * parameter.part, reduce_stream_);
  tape_.free(wide);
}

// Modules whose inputs have no gradients are released at the end (release_backward_leftovers).
void PartitionedZero::end_backward() {
  reduce_bucket();
  for (const ActiveBackward& active : active_backward_) {
    std::vector<std::int64_t> left(active.call.parameters.begin(), active.call.parameters.end());
    left.insert(left.end(), active.recomputed.begin(), active.recomputed.end());
    for (const std::int64_t i : left) {
      Parameter& parameter = at(i);
      std::erase(parameter.users, active.call.module);
      if (!parameter.persists) {
        drop(parameter);
      }
    }
  }
  active_backward_.clear();
}

void PartitionedZero::step() {
  num_of_step_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {  // release_and_reset_all
    await(static_cast<std::int64_t>(i));
    parameters_[i].users.clear();
    drop(parameters_[i]);
  }
  if (!offloads_optimizer_) {
    for (const Parameter& parameter : parameters_) {
      if (parameter.whole.is_trained) {
        TapeTensor wide = make_as(tape_, TapeRow::kStepNorms, kFp64 * parameter.part);
        tape_.free(wide);
      }
    }
  }
  for (std::size_t i = 0; i < num_on_gpu_; ++i) { update(i); }
  has_moments_ = true;
  for (TapeTensor& norm : norms_) { tape_.free(norm); }
  norms_.clear();
  gather_persistent();
}

// Where others are offloaded it is torch's AdamW, not fused: square roots of the second moment.
void PartitionedZero::update(std::size_t sub_group) {
  const std::int64_t elements = sub_groups_[sub_group];
  TapeTensor gradient;
  if (!offloads_optimizer_) {
    TapeTensor flat = make_as(tape_, TapeRow::kFlatGradients, half_ * elements);
    gradient = make_as(tape_, TapeRow::kWideGradients, kFp32 * elements);
    tape_.free(flat);
  }
  if (!has_moments_) {
    moments_.make(elements, !offloads_optimizer_);
  }
  TapeTensor roots =
      make_as(tape_, TapeRow::kStepRoots, offloads_optimizer_ ? kFp32 * elements : 0);
  tape_.free(roots, gradient);
}

// _post_step; parts on the host are all brought before.
void PartitionedZero::gather_persistent() {
  const bool gathers = ranks_ > 1 || offloads_parameters_;
  std::vector<TapeTensor> parts;
  for (const Parameter& parameter : parameters_) {
    const bool comes = parameter.persists && offloads_parameters_ && ranks_ > 1;
    parts.push_back(make_as(tape_, TapeRow::kOnItsWay, comes ? parameter.part_bytes() : 0));
  }
  for (Parameter& parameter : parameters_) {
    if (parameter.persists) {
      fill(parameter, gathers ? ranks_ * parameter.part_bytes() : 0, AllocationStream::kCompute);
      parameter.status = Status::kHere;
    }
  }
  for (TapeTensor& part : parts) { tape_.free(part); }
}

}  // namespace shardplan::deepspeed
