#include "estimator/frameworks/deepspeed/partitioned.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kFp32 = 4;

// Defaults of runtime/zero/config.py: stage3_param_persistence_threshold,
// stage3_max_reuse_distance.
constexpr std::int64_t kPersistentElements = 100'000;
constexpr std::int64_t kReuseElements = 1'000'000'000;
constexpr std::int64_t kNever = -1;

}  // namespace

DividedTensors zero3_divided_tensors(const Job& job) {
  DividedTensors found;
  double in_gather = 0;
  std::int64_t gathered = 0;
  const auto end_gather = [&] {
    found.all += in_gather;
    found.gathered_together += in_gather > 1 ? in_gather : 0;
    found.elements_together += in_gather > 1 ? gathered : 0;
    in_gather = 0;
    gathered = 0;
  };
  for (const std::int64_t elements : deepspeed_layer_tensors(job.model)) {
    if (elements <= kPersistentElements) {
      continue;
    }
    in_gather += 1;
    gathered += elements;
    if (gathered >= job.profile.prefetch_bucket_elements) {
      end_gather();
    }
  }
  end_gather();
  return found;
}

PartitionedZero::PartitionedZero(const Job& job, const Plan& plan, eager::Tape& tape)
    : tape_(tape),
      half_(bytes_of(activation_dtype(plan.precision))),
      ranks_(dense_shard_size(job, plan)),
      sub_groups_(deepspeed_sub_groups(job, plan)),
      offloads_optimizer_(plan.offload.optimizer > 0),
      offloads_parameters_(plan.offload.parameters),
      num_on_gpu_(
          static_cast<std::size_t>(deepspeed_sub_groups_on_gpu(plan, std::ssize(sub_groups_)))),
      bucket_elements_(job.profile.reduce_bucket_elements),
      prefetch_elements_(job.profile.prefetch_bucket_elements),
      max_live_elements_(job.profile.max_live_parameters) {
  if (overlaps_collectives(job, plan)) {
    gather_stream_ = AllocationStream::kGather;
    reduce_stream_ = AllocationStream::kReduce;
  }
  for (const std::int64_t elements : deepspeed_tensors(job.model)) {
    parameters_.push_back({.elements = elements,
                           .part = div_ceil(elements, ranks_),
                           .persists = elements <= kPersistentElements});
  }
}

// Parts are moved to the host and back into one tensor, the cache emptied (defragment); copies in
// fp32; a gradient for an empty step, which offloaded sub-groups on the GPU keep; bucket and
// gradients; each parameter gathered once, for its hook.
void PartitionedZero::build() {
  std::int64_t part = 0;
  for (const Parameter& parameter : parameters_) { part += parameter.part; }
  make_as(tape_, TapeRow::kParameters, offloads_parameters_ ? 0 : half_ * part);
  const InRow copies(tape_, TapeRow::kPartCopies);
  TapeTensor converted;
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < num_on_gpu_; ++i) {
    tape_.replace(converted, kFp32 * sub_groups_[i]);
    make_as(tape_, TapeRow::kMasterPart, kFp32 * sub_groups_[i]);
    largest = std::max(largest, sub_groups_[i]);
  }
  tape_.free(converted);
  if (offloads_optimizer_) {
    for (std::size_t i = 0; i < num_on_gpu_; ++i) {
      make_as(tape_, TapeRow::kWideGradients, kFp32 * sub_groups_[i]);
    }
  } else {
    TapeTensor zeros = tape_.make(kFp32 * largest);
    tape_.free(zeros);
  }
  make_as(tape_, TapeRow::kBucket, half_ * bucket_elements_);
  make_as(tape_, TapeRow::kGradients, offloads_optimizer_ ? 0 : half_ * part);
  for (const Parameter& parameter : parameters_) {
    TapeTensor gathered = make_as(tape_, TapeRow::kGathered, half_ * ranks_ * parameter.part);
    TapeTensor own =
        make_as(tape_, TapeRow::kOnItsWay, offloads_parameters_ ? half_ * parameter.part : 0);
    tape_.free(own, gathered);
  }
}

// reset_step. The first microbatch records the calls that those after it follow.
void PartitionedZero::begin_microbatch(bool is_last) {
  ++num_microbatches_;
  ++num_of_step_;
  is_boundary_ = is_last;
  call_ = 0;
  available_elements_ = 0;
  queue_.clear();
  for (Parameter& parameter : parameters_) { parameter.fetched_for = kNever; }
  for (std::size_t i = 0; has_trace() && i < trace_.size(); ++i) {
    if (trace_[i] != ModuleCall::kNoParameter) {
      queue_.push_back({.parameter = trace_[i], .call = static_cast<std::int64_t>(i)});
    }
  }
}

// all_gather_coalesced: one parameter is gathered into its own tensor, several into a flat one; of
// one rank there is nothing to gather. Parts on the host come to the GPU: of one parameter until
// the collective that reads it has been waited for, of several until they lie in the flat tensor.
void PartitionedZero::gather(const std::vector<std::int64_t>& parameters) {
  Gather gather{.parameters = parameters, .num_awaited = std::ssize(parameters)};
  std::ranges::sort(gather.parameters);
  std::int64_t elements = 0;
  for (const std::int64_t i : parameters) {
    at(i).status = Status::kInFlight;
    at(i).gather = gathers_.size();
    elements += ranks_ * at(i).part;
    available_elements_ += at(i).elements;
  }
  std::vector<TapeTensor> parts;
  const auto bring_parts = [&] {
    for (const std::int64_t i : gather.parameters) {
      parts.push_back(make_as(tape_, TapeRow::kOnItsWay,
                                    offloads_parameters_ ? half_ * at(i).part : 0, gather_stream_));
    }
  };
  gather.is_complete = ranks_ == 1 || parameters.size() == 1;
  if (ranks_ == 1) {
    for (const std::int64_t i : gather.parameters) {
      at(i).gathered = make_as(tape_, TapeRow::kGathered,
                                     offloads_parameters_ ? half_ * at(i).part : 0, gather_stream_);
    }
  } else if (parameters.size() == 1) {
    at(parameters.front()).gathered =
        make_as(tape_, TapeRow::kGathered, half_ * elements, gather_stream_);
    bring_parts();
    gather.own_part = parts.front();
  } else {
    gather.flat = make_as(tape_, TapeRow::kGatherBuffer, half_ * elements, gather_stream_);
    bring_parts();
    for (TapeTensor& part : parts) { tape_.free(part); }
  }
  gathers_.push_back(gather);
}

// AllGatherCoalescedHandle.wait copies every parameter out of the flat tensor.
void PartitionedZero::await(std::int64_t parameter) {
  if (at(parameter).status != Status::kInFlight) {
    return;
  }
  Gather& gather = gathers_[at(parameter).gather];
  if (!std::exchange(gather.is_complete, true)) {
    for (const std::int64_t i : gather.parameters) {
      at(i).gathered = make_as(tape_, TapeRow::kGathered, half_ * at(i).elements, gather_stream_);
    }
  }
  at(parameter).status = Status::kHere;
  if (--gather.num_awaited == 0) {
    tape_.free(gather.flat, gather.own_part);
  }
}

void PartitionedZero::prefetch() {
  const std::int64_t most = std::min(max_live_elements_ - available_elements_, prefetch_elements_);
  std::vector<std::int64_t> wanted;
  std::int64_t elements = 0;
  while (!queue_.empty() && elements < most) {
    const QueuedParameter next = queue_.front();
    queue_.pop_front();
    Parameter& parameter = at(next.parameter);
    parameter.fetched_for = std::max(parameter.fetched_for, next.call);
    if (parameter.status == Status::kAway &&
        std::ranges::find(wanted, next.parameter) == wanted.end()) {
      wanted.push_back(next.parameter);
      elements += parameter.elements;
    }
  }
  if (!wanted.empty()) {
    gather(wanted);
  }
}

// fetch_sub_module
void PartitionedZero::fetch(const ModuleCall& call) {
  if (!has_trace()) {
    trace_.push_back(call.parameter);
  }
  if (call.parameter != ModuleCall::kNoParameter && !is_unknown(call)) {
    Parameter& parameter = at(call.parameter);
    if (parameter.status == Status::kAway) {
      gather({call.parameter});
    }
    ++parameter.num_active;
    await(call.parameter);
    if (has_trace() && parameter.fetched_for < call_) {
      parameter.fetched_for = queue_.front().call;
      queue_.pop_front();
    }
  }
  if (has_trace()) {
    prefetch();
  }
  ++call_;
}

// parameter_offload.py, ZeROOrderedDict.__getitem__: the first time it is gathered where it is
// read, of one rank as well (partition_parameters.py, _allgather_params_sequential).
void PartitionedZero::read_external(const ModuleCall& call) {
  if (std::exchange(knows_external_, true)) {
    return;
  }
  Parameter& parameter = at(call.parameter);
  parameter.gathered = make_as(tape_, TapeRow::kGathered, half_ * ranks_ * parameter.part);
  parameter.status = Status::kHere;
  ++parameter.num_active;
}

// Whether it has been fetched for a later call, or one of the next calls, up to kReuseElements of
// parameters, uses it (__params_to_release).
bool PartitionedZero::is_needed_soon(std::int64_t parameter) const {
  if (parameters_[static_cast<std::size_t>(parameter)].fetched_for > call_) {
    return true;
  }
  std::int64_t elements = 0;
  for (std::size_t i = static_cast<std::size_t>(call_);
       i < trace_.size() && elements < kReuseElements; ++i) {
    if (trace_[i] == parameter) {
      return true;
    }
    if (trace_[i] != ModuleCall::kNoParameter) {
      elements += parameters_[static_cast<std::size_t>(trace_[i])].elements;
    }
  }
  return false;
}

void PartitionedZero::drop(Parameter& parameter) {
  if (parameter.status == Status::kHere && parameter.num_active == 0) {
    tape_.free(parameter.gathered);
    parameter.status = Status::kAway;
    available_elements_ -= parameter.elements;
  }
}

// release_sub_module
void PartitionedZero::release(const ModuleCall& call) {
  if (call.parameter == ModuleCall::kNoParameter) {
    return;
  }
  Parameter& parameter = at(call.parameter);
  --parameter.num_active;
  if (!has_trace() || (!parameter.persists && !is_needed_soon(call.parameter))) {
    drop(parameter);
  }
}

void PartitionedZero::before_backward(const ModuleCall& call) {
  active_backward_.push_back(call);
  fetch(call);
}

void PartitionedZero::after_backward(const ModuleCall& call) {
  std::erase_if(active_backward_,
                [&](const ModuleCall& active) { return active.module == call.module; });
  release(call);
}

}  // namespace shardplan::deepspeed
