#include "estimator/frameworks/transformers/fsdp.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/units.h"

namespace shardplan::transformers {

using eager::InRow;
using eager::Parameter;
using eager::Tensor;
using eager::Tensors;
using huggingface::kGatherBufferRow;
using huggingface::kGatheredRow;
using huggingface::kGradientsRow;
using huggingface::kReduceBufferRow;
using huggingface::ModuleGroup;

namespace {

bool is_of_bytes(const Parameter& parameter) {
  return parameter.data.dtype == DType::kBool;
}

}  // namespace

bool FullyShard::is_unsharded(const Group& group) const {
  return !group.members.front().parameter->data.storage->is_empty();
}

// What a gather takes: shards that have another type in one flat tensor; from the host each as it
// is, then in the gathered type (_get_param_all_gather_inputs).
eager::Tensors FullyShard::gather_inputs(const Group& group) {
  eager::Tensors inputs;
  std::int64_t cast = 0;
  for (const auto& [parameter, gradient, is_of_tower] : group.members) {
    const std::int64_t elements = shard_elements(*parameter);
    const bool casts = parameter->dtype != parameter->data.dtype;
    cast += casts ? elements : 0;
    if (offloads_) {
      inputs.push_back(graph_.make(elements, parameter->dtype, AllocationStream::kGather));
    }
    if (offloads_ && casts) {
      inputs.back() = graph_.make(elements, parameter->data.dtype, AllocationStream::kGather);
    }
  }
  if (!offloads_) {
    inputs.push_back(graph_.make(cast, gathered_, AllocationStream::kGather));
  }
  return inputs;
}

// The inputs go with the copy into the output (all_gather_copy_in), which is one of bytes where
// they have several types (_get_all_gather_input_metadatas).
void FullyShard::gather(Group& group) {
  if (group.members.empty() || is_unsharded(group) || group.gathered.is_defined()) {
    return;
  }
  const InRow row(graph_.tape, kGatherBufferRow);
  std::int64_t bytes = 0;
  bool has_bytes = false;
  for (const auto& [parameter, gradient, is_of_tower] : group.members) {
    bytes += shard_elements(*parameter) * bytes_of(parameter->data.dtype);
    has_bytes = has_bytes || is_of_bytes(*parameter);
  }
  const eager::Tensors inputs = gather_inputs(group);
  const DType joint = has_bytes ? DType::kBool : gathered_;
  group.gathered =
      graph_.make(group.ranks * (bytes / bytes_of(joint)), joint, AllocationStream::kGather);
}

void FullyShard::unshard(Group& group, bool holds_output) {
  if (group.members.empty() || is_unsharded(group)) {
    return;
  }
  gather(group);
  {
    const InRow row(graph_.tape, kGatheredRow);
    for (const auto& [parameter, gradient, is_of_tower] : group.members) {
      parameter->data.storage->fill(
          group.ranks * shard_elements(*parameter) * bytes_of(parameter->data.dtype),
          parameter->data.dtype);
    }
  }
  if (holds_output) {
    held_output_ = std::exchange(group.gathered, {});
  } else {
    group.gathered = {};
  }
}

void FullyShard::reshard(Group& group) {
  for (const auto& [parameter, gradient, is_of_tower] : group.members) {
    parameter->data.storage->empty();
  }
}

// Behind the group's backward pass its gradients are reduced (RegisterPostBackwardFunction).
Tensor FullyShard::hook_reduction(Group& group, const Tensor& input) {
  return eager::with_backward_hook(graph_, input, [this, &group] {
    reshard(group);
    reduce(group);
  });
}

// With tied tables the last group is entered with the embedding, whose input has no gradient; the
// root's with the model.
Tensor FullyShard::enter(const ModuleGroup& module, const Tensor& input) {
  if (module.kind == ModuleGroup::Kind::kEmbedding) {
    unshard(has_root_ ? tail() : tower_rest_, true);
  }
  Group& group = group_of(module);
  unshard(group, true);
  const bool is_entered = is_tied_ && module.kind == ModuleGroup::Kind::kFinalNorm;
  if (&group == &tail() && (has_root_ || is_entered)) {
    return input;
  }
  return hook_reduction(group, input);
}

Tensor FullyShard::hook_backward(Group& group, const Tensor& output) {
  return eager::with_backward_hook(graph_, output, [this, &group] { before_backward(group); });
}

// The root's group is left with the model. A layer that runs again within a backward pass is the
// root of its run: parameters stay, and the gather's output goes.
Tensor FullyShard::leave(const ModuleGroup& module, const Tensor& output) {
  Group& group = group_of(module);
  if (has_root_ && &group == &tail()) {
    return output;
  }
  if (graph_.runs_backward()) {
    held_output_ = {};
  } else if (group.reshards) {
    reshard(group);
  }
  return hook_backward(group, output);
}

Tensor FullyShard::leave_model(const Tensor& loss) {
  if (!has_root_) {
    return loss;
  }
  if (tail().reshards) {
    reshard(tail());
  }
  return hook_backward(tail(), loss);
}

// cast_forward_inputs, then as a layer's; a matrix that runs again is the root of its run.
Tensor FullyShard::before_call(const eager::Module& module, const Tensor& input) {
  Group* const group = alone(module);
  if (group == nullptr) {
    return input;
  }
  const Tensor narrow = eager::to(graph_, input, gathered_);
  unshard(*group, true);
  return hook_reduction(*group, narrow);
}

Tensor FullyShard::behind_call(const eager::Module& module, const Tensor& output) {
  Group* const group = alone(module);
  if (group == nullptr) {
    return output;
  }
  if (graph_.runs_backward()) {
    held_output_ = {};
  } else if (group->reshards) {
    reshard(*group);
  }
  return hook_backward(*group, output);
}

// Gathered again, and the group before it ahead.
void FullyShard::before_backward(Group& group) {
  unshard(group, false);
  if (group.before != nullptr) {
    gather(*group.before);
  }
}

// Without reduction gradients of later microbatches are added to the first one's, whole
// (set_requires_gradient_sync).
void FullyShard::take(Group& group, const Parameter& parameter, Tensor gradient) {
  const auto member = std::ranges::find(group.members, &parameter, &Member::parameter);
  if (!member->gradient.is_defined()) {
    member->gradient = std::move(gradient);
  }
}

// foreach_reduce: gradients are freed once they lie in the reduction's input, but for the last one,
// which a variable still names.
void FullyShard::reduce(Group& group) {
  eager::Tensors gradients;
  std::int64_t shard = 0;
  Parameter* holder = nullptr;
  for (Member& member : group.members) {
    if (syncs_ && member.gradient.is_defined()) {
      gradients.push_back(std::exchange(member.gradient, {}));
      shard += shard_elements(*member.parameter);
      holder = holder == nullptr ? member.parameter : holder;
    }
  }
  if (gradients.empty()) {
    return;
  }
  const InRow row(graph_.tape, kReduceBufferRow);
  reduction_input_ = {};
  reduction_input_ = graph_.make(group.ranks * shard, reduced_);
  const Tensor named = std::move(gradients.back());
  while (!gradients.empty()) { gradients.pop_back(); }  // as a list of Python does
  const bool casts = holder->dtype != reduced_;
  Tensor output = graph_.make(casts ? shard : 0, reduced_, AllocationStream::kReduce);
  if (sums_replicas_ && casts) {
    summed_.push_back(output);
  }
  const InRow gradients_row(graph_.tape, kGradientsRow);
  output = graph_.make(shard, holder->dtype, AllocationStream::kReduce);
  if (sums_replicas_ && !casts) {
    summed_.push_back(output);
  }
  if (!holder->gradient.is_defined() && !offloads_) {
    holder->gradient = std::move(output);
  }
}

void FullyShard::finish(Group& group) {
  reshard(group);
  reduce(group);
  group.gathered = {};
}

// root_post_backward_final_callback: the root comes first.
void FullyShard::end_backward() {
  if (has_root_) {
    finish(tail());
  }
  for (Group& group : groups_) { finish(group); }
  for (Group& group : experts_) { finish(group); }
  finish(tower_rest_);
  for (Group& group : adapters_) { finish(group); }
  reduction_input_ = {};
  summed_.clear();
}

}  // namespace shardplan::transformers
