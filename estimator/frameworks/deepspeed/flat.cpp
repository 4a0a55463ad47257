#include "estimator/frameworks/deepspeed/flat.h"

#include <algorithm>
#include <span>
#include <utility>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/frameworks/deepspeed/outside.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/capacity.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kFp64 = 8;

// Whether the card has room for the flat tensor beside the model's own and all that is outside the
// allocator (accelerator/cuda_accelerator.py, available_memory: what the driver calls free); else
// the model goes to the host before.
bool has_room_to_flatten(const Job& job, const Plan& plan, std::int64_t flat_bytes,
                         std::span<const ZeroTensor> tensors) {
  OutsideSum outside;
  add_outside_at_start(job, plan, 0, outside);
  const std::int64_t free = device_capacity_bytes(job.cluster) - outside.bytes();
  CachingAllocator allocator(job.profile.allocator, std::max<std::int64_t>(free, 0));
  const auto fits = [&](std::int64_t bytes) {
    return allocator.allocate(bytes) != CachingAllocator::kNone;
  };
  return std::ranges::all_of(tensors,
                             [&](const ZeroTensor& tensor) {
                               return fits(bytes_of(tensor.dtype) * tensor.elements);
                             }) &&
         fits(flat_bytes);
}

}  // namespace

void check_overflow_by_copies(eager::Tape& tape, std::int64_t elements, AllocationStream stream) {
  const InRow row(tape, TapeRow::kStepCheck);
  const auto make = [&](std::int64_t bytes) {
    return tape.make_typed(bytes, text_of(TapeRow::kStepCheck).dtype, stream);
  };
  TapeTensor copy = make(kFp32 * elements);
  TapeTensor nans = make(elements);
  TapeTensor magnitude = make(kFp32 * elements);
  TapeTensor infinities = make(elements);
  tape.free(magnitude);
  TapeTensor either = make(elements);
  TapeTensor numbers = make(kFp32 * elements);
  tape.free(numbers, copy, nans, infinities, either);
}

FlatZero::FlatZero(const Job& job, const Plan& plan, std::int64_t rank, eager::Tape& tape,
                   const std::vector<ZeroTensor>& tensors)
    : tape_(tape),
      half_(bytes_of(activation_dtype(plan.precision))),
      keeps_gradients_(plan.zero == 1),
      overlaps_(overlaps_collectives(job, plan)),
      reduce_stream_(overlaps_ ? AllocationStream::kReduce : AllocationStream::kCompute),
      makes_buckets_first_(job.profile.makes_buckets_first),
      copies_for_check_(copies_for_overflow_check(job, plan)),
      offloads_(plan.offload.optimizer > 0),
      checks_offloaded_by_copies_(job.profile.overflow_check != OverflowCheck::kByExtremes),
      bucket_elements_(job.profile.reduce_bucket_elements),
      rank_(rank),
      moments_(job, plan, tape) {
  std::vector<std::int64_t> trained;
  for (const ZeroTensor& tensor : tensors) {
    if (tensor.is_trained) {
      trained.push_back(tensor.elements);
    }
  }
  ranges_ = deepspeed_ranges(trained);
  gradients_.resize(ranges_.size());
  const std::int64_t ranks = dense_shard_size(job, plan);
  share_ = deepspeed_share(trained, ranks);
  flat_elements_ = share_ * ranks;
  flattens_on_gpu_ = job.profile.flattens_on_gpu &&
                     has_room_to_flatten(job, plan, half_ * flat_elements_, tensors);
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const FlatRange& range = ranges_[i];
    if (is_kept(static_cast<std::int64_t>(i))) {
      kept_elements_ += range.elements();
      parts_.push_back(part_of(static_cast<std::int64_t>(i)));
    }
  }
}

const FlatRange& FlatZero::range_of(std::int64_t parameter) const {
  return ranges_[static_cast<std::size_t>(parameter)];
}

bool FlatZero::is_kept(std::int64_t parameter) const {
  const FlatRange& range = range_of(parameter);
  return range.begin < (rank_ + 1) * share_ && range.end > rank_ * share_;
}

// Elements of it in this rank's share.
std::int64_t FlatZero::part_of(std::int64_t parameter) const {
  const FlatRange& range = range_of(parameter);
  return std::min(range.end, (rank_ + 1) * share_) - std::max(range.begin, rank_ * share_);
}

void FlatZero::build() {
  std::vector<TapeTensor> model;
  if (flattens_on_gpu_) {
    for (const FlatRange& range : ranges_) {
      model.push_back(make_as(tape_, TapeRow::kModel, half_ * range.elements()));
    }
  }
  flatten([&] {
    for (TapeTensor& tensor : model) { tape_.free(tensor); }
  });
}

// Offloaded parts are converted on the host; temp_grad_buffer_for_gpu_offload is where accumulated
// gradients come back.
void FlatZero::flatten(const std::function<void()>& drop_tensors) {
  make_as(tape_, TapeRow::kParameters, half_ * flat_elements_);
  drop_tensors();
  TapeTensor part = make_as(tape_, TapeRow::kPartCopies, half_ * share_);
  if (offloads_) {
    tape_.free(part);
    const FlatRange& largest = *std::ranges::max_element(ranges_, {}, &FlatRange::elements);
    make_as(tape_, TapeRow::kOffloadBuffer, half_ * largest.elements());
    return;
  }
  make_as(tape_, TapeRow::kMasterPart, kFp32 * share_);
  tape_.free(part);
  // initialize_optimizer_states
  TapeTensor zeros = make_as(tape_, TapeRow::kPartCopies, kFp32 * share_);
  tape_.free(zeros);
}

void FlatZero::set_up_buckets() {
  if (has_buckets_) {
    return;
  }
  has_buckets_ = true;
  buffers_[0] = make_as(tape_, TapeRow::kBucket, half_ * bucket_elements_);
  buffers_[1] = make_as(tape_, TapeRow::kBucket, overlaps_ ? half_ * bucket_elements_ : 0);
}

// The call of the whole model is where the backward pass begins.
void FlatZero::before_backward(const ModuleCall& call) {
  if (makes_buckets_first_ && call.module == ModuleCall::kWholeModel) {
    set_up_buckets();
  }
}

void FlatZero::take(std::int64_t parameter, eager::Tensor gradient) {
  eager::Tensor& held = gradients_[static_cast<std::size_t>(parameter)];
  if (held.is_defined()) {
    gradient = {};
  } else {
    held = std::move(gradient);
  }
  set_up_buckets();
  if (!keeps_gradients_ || (overlaps_ && is_boundary_)) {
    add_to_bucket(parameter);
  }
}

// reduce_independent_p_g_buckets_and_remove_grads
void FlatZero::add_to_bucket(std::int64_t parameter) {
  const std::int64_t elements = range_of(parameter).elements();
  if (bucket_.elements + elements > bucket_elements_) {
    reduce_bucket();
  }
  if (elements <= bucket_elements_) {
    gradients_[static_cast<std::size_t>(parameter)] = {};  // copied
  }
  bucket_.elements += elements;
  bucket_.parameters.push_back(parameter);
}

void FlatZero::average() {
  std::vector<FlatRange> tensors;
  for (const std::int64_t parameter : bucket_.parameters) {
    tensors.push_back(range_of(parameter));
  }
  for (const std::int64_t elements : deepspeed_flat_copies(tensors, share_, bucket_elements_)) {
    TapeTensor flat = make_as(tape_, TapeRow::kFlatCopy, half_ * elements, reduce_stream_);
    tape_.free(flat);
  }
}

// reduce_ipg_grads, copy_grads_in_partition
void FlatZero::reduce_bucket() {
  average();
  for (const std::int64_t parameter : bucket_.parameters) {
    const bool keeps = is_kept(parameter);
    if (keeps && offloads_) {
      move_to_host(parameter);
    } else if (keeps && partition_.id == 0) {
      partition_ = make_as(tape_, TapeRow::kGradientPart, half_ * kept_elements_, reduce_stream_);
    }
    if (keeps || !keeps_gradients_) {
      gradients_[static_cast<std::size_t>(parameter)] = {};
    }
  }
  bucket_ = {};
}

// copy_grads_in_partition: before the last microbatch it is added to what the host has, by way of
// the buffer; then its norm and what is not finite are looked for, and it leaves in fp32.
void FlatZero::move_to_host(std::int64_t parameter) {
  if (!is_boundary_) {
    return;
  }
  const std::int64_t part = part_of(parameter);
  TapeTensor wide = make_as(tape_, TapeRow::kStepNorms, kFp64 * part, reduce_stream_);
  norms_.push_back(make_as(tape_, TapeRow::kStepNorms, kFp64, reduce_stream_));
  tape_.free(wide);
  if (checks_offloaded_by_copies_) {
    check_overflow_by_copies(tape_, range_of(parameter).elements(), reduce_stream_);
  }
  TapeTensor leaving = make_as(tape_, TapeRow::kWideGradients, kFp32 * part, reduce_stream_);
  tape_.free(leaving);
}

// independent_gradient_partition_epilogue
void FlatZero::end_backward() {
  if (keeps_gradients_ && !is_boundary_) {
    return;
  }
  if (keeps_gradients_ && !overlaps_) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      add_to_bucket(static_cast<std::int64_t>(i));
    }
  }
  reduce_bucket();
  if (accumulated_.id == 0) {
    accumulated_ = std::exchange(partition_, {});
  }
  tape_.free(buffers_[0], buffers_[1], partition_);
  for (eager::Tensor& gradient : gradients_) { gradient = {}; }
  has_buckets_ = false;
}

// In fp64, one part after the other (get_grad_norm_direct).
void FlatZero::take_norms() {
  for (const std::int64_t part : parts_) {
    TapeTensor wide = make_as(tape_, TapeRow::kStepNorms, kFp64 * part);
    tape_.free(wide);
  }
}

void FlatZero::step() {
  if (offloads_) {
    for (TapeTensor& norm : norms_) { tape_.free(norm); }
    norms_.clear();
    return;
  }
  if (copies_for_check_) {
    for (const std::int64_t part : parts_) {
      check_overflow_by_copies(tape_, part, AllocationStream::kCompute);
    }
  }
  take_norms();
  TapeTensor flat = make_as(tape_, TapeRow::kFlatGradients, parts_.size() > 1 ? half_ * share_ : 0);
  TapeTensor gradient = make_as(tape_, TapeRow::kWideGradients, kFp32 * share_);
  tape_.free(flat, accumulated_);
  if (!std::exchange(has_moments_, true)) {
    moments_.make(share_, true);
  }
  tape_.free(gradient);
}

}  // namespace shardplan::deepspeed
