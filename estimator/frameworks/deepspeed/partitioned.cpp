#include "estimator/frameworks/deepspeed/partitioned.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kFp32 = 4;

// The default of runtime/zero/config.py, stage3_max_reuse_distance.
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
    if (elements <= job.profile.persistent_elements) {
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

PartitionedZero::PartitionedZero(const Job& job, const Plan& plan, eager::Tape& tape,
                                 std::vector<ZeroTensor> tensors)
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
      max_live_elements_(job.profile.max_live_parameters),
      moments_(job, plan, tape) {
  if (overlaps_collectives(job, plan)) {
    gather_stream_ = AllocationStream::kGather;
    reduce_stream_ = AllocationStream::kReduce;
  }
  for (ZeroTensor& tensor : tensors) {
    const std::int64_t elements = tensor.elements;
    parameters_.push_back({.whole = std::move(tensor),
                           .part = div_ceil(elements, ranks_),
                           .persists = elements <= job.profile.persistent_elements});
  }
}

// Parts of what is trained are moved to the host and back into one tensor, the cache emptied
// (defragment); copies in fp32; a gradient for an empty step, which offloaded sub-groups on the GPU
// keep; bucket and gradients; each trained parameter gathered once, for its hook.
void PartitionedZero::build() {
  std::int64_t trained = 0;
  std::int64_t bytes = 0;
  for (const Parameter& parameter : parameters_) {
    if (parameter.whole.is_trained) {
      trained += parameter.part;
      bytes += parameter.part_bytes();
    } else if (!offloads_parameters_) {
      make_as(tape_, TapeRow::kParameters, parameter.part_bytes());
    }
  }
  make_as(tape_, TapeRow::kParameters, offloads_parameters_ ? 0 : bytes);
  TapeTensor converted;
  std::int64_t largest = 0;
  for (std::size_t i = 0; i < num_on_gpu_; ++i) {
    const TapeTensor copy = make_as(tape_, TapeRow::kPartCopies, kFp32 * sub_groups_[i]);
    tape_.free(converted);
    converted = copy;
    make_as(tape_, TapeRow::kMasterPart, kFp32 * sub_groups_[i]);
    largest = std::max(largest, sub_groups_[i]);
  }
  tape_.free(converted);
  if (offloads_optimizer_) {
    for (std::size_t i = 0; i < num_on_gpu_; ++i) {
      make_as(tape_, TapeRow::kWideGradients, kFp32 * sub_groups_[i]);
    }
  } else {
    TapeTensor zeros = make_as(tape_, TapeRow::kPartCopies, kFp32 * largest);
    tape_.free(zeros);
  }
  make_as(tape_, TapeRow::kBucket, half_ * bucket_elements_);
  make_as(tape_, TapeRow::kGradients, offloads_optimizer_ ? 0 : half_ * trained);
  for (const Parameter& parameter : parameters_) {
    if (parameter.whole.is_trained) {
      TapeTensor gathered = make_as(tape_, TapeRow::kGathered, ranks_ * parameter.part_bytes());
      TapeTensor own =
          make_as(tape_, TapeRow::kOnItsWay, offloads_parameters_ ? parameter.part_bytes() : 0);
      tape_.free(own, gathered);
    }
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
    for (const std::int64_t parameter : trace_[i]) {
      queue_.push_back({.parameter = parameter, .call = static_cast<std::int64_t>(i)});
    }
  }
}

void PartitionedZero::fill(const Parameter& parameter, std::int64_t bytes,
                           AllocationStream stream) {
  const InRow row(tape_, TapeRow::kGathered);
  parameter.whole.data->fill(bytes, parameter.whole.dtype, stream);
}

// all_gather_coalesced: one parameter is gathered into its own tensor, several into flat ones, one
// of each type; of one rank there is nothing to gather. Parts on the host come to the GPU: of one
// parameter until the collective that reads it has been waited for, of several until they lie in
// the flat tensor.
void PartitionedZero::gather(std::span<const std::int64_t> parameters) {
  if (parameters.empty()) {
    return;
  }
  Gather gather;
  gather.parameters.assign(parameters.begin(), parameters.end());
  std::ranges::sort(gather.parameters);
  gather.num_awaited = std::ssize(parameters);
  for (const std::int64_t i : gather.parameters) {
    at(i).status = Status::kInFlight;
    at(i).gather = gathers_.size();
    available_elements_ += at(i).whole.elements;
  }
  gather.is_complete = ranks_ == 1 || parameters.size() == 1;
  if (ranks_ == 1) {
    for (const std::int64_t i : gather.parameters) {
      fill(at(i), offloads_parameters_ ? at(i).part_bytes() : 0, gather_stream_);
    }
  } else if (parameters.size() == 1) {
    const Parameter& only = at(parameters.front());
    fill(only, ranks_ * only.part_bytes(), gather_stream_);
    gather.own_part = bring_part(only);
  } else {
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      gather_flat(gather, dtype);
    }
  }
  gathers_.push_back(std::move(gather));
}

TapeTensor PartitionedZero::bring_part(const Parameter& parameter) {
  return make_as(tape_, TapeRow::kOnItsWay, offloads_parameters_ ? parameter.part_bytes() : 0,
                 gather_stream_);
}

void PartitionedZero::gather_flat(Gather& gather, DType dtype) {
  std::int64_t bytes = 0;
  for (const std::int64_t i : gather.parameters) {
    bytes += at(i).whole.dtype == dtype ? ranks_ * at(i).part_bytes() : 0;
  }
  gather.flat.push_back(make_as(tape_, TapeRow::kGatherBuffer, bytes, gather_stream_));
  std::vector<TapeTensor> parts;
  for (const std::int64_t i : gather.parameters) {
    if (at(i).whole.dtype == dtype) {
      parts.push_back(bring_part(at(i)));
    }
  }
  for (TapeTensor& part : parts) { tape_.free(part); }
}

// AllGatherCoalescedHandle.wait copies every parameter out of the flat tensor.
void PartitionedZero::await(std::int64_t parameter) {
  if (at(parameter).status != Status::kInFlight) {
    return;
  }
  Gather& gather = gathers_[at(parameter).gather];
  if (!std::exchange(gather.is_complete, true)) {
    for (const std::int64_t i : gather.parameters) {
      fill(at(i), bytes_of(at(i).whole.dtype) * at(i).whole.elements, gather_stream_);
    }
  }
  at(parameter).status = Status::kHere;
  if (--gather.num_awaited == 0) {
    for (TapeTensor& flat : gather.flat) { tape_.free(flat); }
    tape_.free(gather.own_part);
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
      elements += parameter.whole.elements;
    }
  }
  if (!wanted.empty()) {
    gather(wanted);
  }
}

// Parameters that were not asked for ahead are taken off the queue now.
void PartitionedZero::take_off_queue(std::span<const std::int64_t> parameters) {
  std::vector<std::int64_t> missing;
  std::ranges::copy_if(parameters, std::back_inserter(missing),
                       [&](std::int64_t parameter) { return at(parameter).fetched_for < call_; });
  while (!missing.empty() && !queue_.empty()) {
    const QueuedParameter next = queue_.front();
    queue_.pop_front();
    at(next.parameter).fetched_for = next.call;
    std::erase(missing, next.parameter);
  }
}

void PartitionedZero::use(std::int64_t parameter, std::int64_t module) {
  std::vector<std::int64_t>& users = at(parameter).users;
  if (std::ranges::find(users, module) == users.end()) {
    users.push_back(module);
  }
}

// fetch_sub_module
void PartitionedZero::fetch(const ModuleCall& call) {
  if (!has_trace()) {
    trace_.push_back(call.parameters);
  }
  if (!is_unknown(call)) {
    std::vector<std::int64_t> away;
    std::ranges::copy_if(call.parameters, std::back_inserter(away), [&](std::int64_t parameter) {
      return at(parameter).status == Status::kAway;
    });
    gather(away);
    for (const std::int64_t parameter : call.parameters) {
      use(parameter, call.module);
      await(parameter);
    }
    if (has_trace()) {
      take_off_queue(call.parameters);
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
  if (!known_externals_.insert(call.module).second) {
    return;
  }
  for (const std::int64_t i : call.parameters) {
    Parameter& parameter = at(i);
    if (parameter.status == Status::kAway) {
      fill(parameter, ranks_ * parameter.part_bytes(), AllocationStream::kCompute);
      parameter.status = Status::kHere;
    }
  }
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
    for (const std::int64_t used : trace_[i]) {
      if (used == parameter) {
        return true;
      }
      elements += parameters_[static_cast<std::size_t>(used)].whole.elements;
    }
  }
  return false;
}

void PartitionedZero::drop(Parameter& parameter) {
  if (parameter.status == Status::kHere && parameter.users.empty()) {
    parameter.whole.data->empty();
    parameter.status = Status::kAway;
    available_elements_ -= parameter.whole.elements;
  }
}

// release_sub_module
void PartitionedZero::release(const ModuleCall& call) {
  for (const std::int64_t i : call.parameters) {
    Parameter& parameter = at(i);
    std::erase(parameter.users, call.module);
    if (!has_trace() || (!parameter.persists && !is_needed_soon(i))) {
      drop(parameter);
    }
  }
}

// Of a layer that runs again a module's frozen parameters stay with what runs backward, as no
// gradient of theirs tells when they have been used (update_recompute_parameters).
void PartitionedZero::before_forward(const ModuleCall& call) {
  fetch(call);
  if (active_backward_.empty()) {
    return;
  }
  ActiveBackward& active = active_backward_.back();
  for (const std::int64_t parameter : call.parameters) {
    if (!at(parameter).whole.is_trained) {
      use(parameter, active.call.module);
      active.recomputed.push_back(parameter);
    }
  }
}

void PartitionedZero::before_backward(const ModuleCall& call) {
  const auto runs = [&](const ActiveBackward& active) { return active.call.module == call.module; };
  if (std::ranges::none_of(active_backward_, runs)) {
    active_backward_.push_back({.call = call, .recomputed = {}});
  }
  fetch(call);
}

void PartitionedZero::after_backward(const ModuleCall& call) {
  std::vector<std::int64_t> recomputed;
  std::erase_if(active_backward_, [&](ActiveBackward& active) {
    const bool ends = active.call.module == call.module;
    if (ends) {
      recomputed = std::move(active.recomputed);
    }
    return ends;
  });
  release(call);
  for (const std::int64_t i : recomputed) {
    Parameter& parameter = at(i);
    std::erase(parameter.users, call.module);
    if (!parameter.persists) {
      drop(parameter);
    }
  }
}

}  // namespace shardplan::deepspeed
