#include "estimator/frameworks/transformers/fsdp.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/units.h"

namespace shardplan::transformers {

using eager::InRow;
using eager::Parameter;
using eager::Tensor;
using eager::Tensors;
using huggingface::compute_dtype;
using huggingface::Holder;
using huggingface::kGatherBufferRow;
using huggingface::kGatheredRow;
using huggingface::kGradientsRow;
using huggingface::kReduceBufferRow;
using huggingface::kShardRow;
using huggingface::ModuleGroup;
using huggingface::Shape;

FullyShard::FullyShard(eager::Graph& graph, const Job& job, const Plan& plan)
    : Holder(graph),
      job_(job),
      ranks_(dense_shard_size(job, plan)),
      num_layers_(job.model.num_layers()),
      gathered_(compute_dtype(plan)),
      offloads_(plan.offload.parameters),
      is_tied_(job.model.tied_embeddings),
      has_root_(job.profile.fsdp_ends == FsdpEnds::kRoot) {
  groups_.resize(static_cast<std::size_t>(num_layers_ + 2));
  for (Group& group : groups_) { group.reshards = plan.zero == 3; }
  groups_.back().reshards = has_root_ && plan.zero == 3;
}

std::size_t FullyShard::index_of(const ModuleGroup& module) const {
  using enum ModuleGroup::Kind;
  switch (module.kind) {
    case kEmbedding: return is_tied_ || has_root_ ? groups_.size() - 1 : 0;
    case kLayer: return static_cast<std::size_t>(module.layer) + 1;
    case kFinalNorm:
    case kHead: break;
  }
  return groups_.size() - 1;
}

// The first dimension is divided, rounded up.
std::int64_t FullyShard::shard_elements(const Parameter& parameter) const {
  return div_ceil(parameter.rows, ranks_) * (parameter.data.elements / parameter.rows);
}

// fsdp2_prepare_model: from 1.14 on, which groups the tail apart, no model with 4-bit weights.
bool FullyShard::is_upcast(bool is_trained) const {
  if (is_4bit(job_.quantized.kind) && !has_root_) {
    return false;
  }
  switch (job_.profile.fsdp_upcast) {
    case FsdpUpcast::kAll: return true;
    case FsdpUpcast::kTrained: return is_trained;
    case FsdpUpcast::kNone: break;
  }
  return false;
}

void FullyShard::load(Parameter& parameter, const eager::Label& /*label*/, const Shape& shape,
                      DType dtype, bool is_trained) {
  parameter.rows = shape.rows;
  parameter.dtype = is_upcast(is_trained) ? DType::kFp32 : dtype;
  parameter.is_trained = is_trained;
  parameter.data.elements = shape.elements();
  const InRow row(graph_.tape, kShardRow);
  shards_.push_back(graph_.make(offloads_ ? 0 : shard_elements(parameter), parameter.dtype));
  Group& group = groups_[index_of(loading_)];
  // The tail's modules are the final norm, then the table or the head.
  const bool is_first = loading_.kind == ModuleGroup::Kind::kFinalNorm && !has_root_;
  group.members.insert(is_first ? group.members.begin() : group.members.end(),
                       {.parameter = &parameter, .gradient = {}});
  parameter.data.dtype = gathered_;
  parameter.data.storage = std::make_shared<eager::Storage>(graph_.tape, TapeTensor{});
  if (is_trained) {
    parameter.data = graph_.make_leaf(parameter.data, [this, &group, &parameter](Tensor gradient) {
      take(group, parameter, std::move(gradient));
    });
  }
}

bool FullyShard::is_unsharded(const Group& group) const {
  return !group.members.front().parameter->data.storage->is_empty();
}

// What a gather takes: shards that have another type in one flat tensor; from the host each as it
// is, then in the gathered type (_get_param_all_gather_inputs).
eager::Tensors FullyShard::gather_inputs(const Group& group) {
  eager::Tensors inputs;
  std::int64_t cast = 0;
  for (const auto& [parameter, gradient] : group.members) {
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

// The inputs go with the copy into the output (all_gather_copy_in).
void FullyShard::gather(Group& group) {
  if (group.members.empty() || is_unsharded(group) || group.gathered.is_defined()) {
    return;
  }
  const InRow row(graph_.tape, kGatherBufferRow);
  std::int64_t all = 0;
  for (const auto& [parameter, gradient] : group.members) { all += shard_elements(*parameter); }
  const eager::Tensors inputs = gather_inputs(group);
  group.gathered = graph_.make(ranks_ * all, gathered_, AllocationStream::kGather);
}

void FullyShard::unshard(Group& group, bool holds_output) {
  if (group.members.empty() || is_unsharded(group)) {
    return;
  }
  gather(group);
  {
    const InRow row(graph_.tape, kGatheredRow);
    for (const auto& [parameter, gradient] : group.members) {
      parameter->data.storage->fill(
          ranks_ * shard_elements(*parameter) * bytes_of(parameter->data.dtype),
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
  for (const auto& [parameter, gradient] : group.members) { parameter->data.storage->empty(); }
}

// Behind the group's backward pass its gradients are reduced (RegisterPostBackwardFunction). With
// tied tables the last group is entered with the embedding, whose input has no gradient.
Tensor FullyShard::enter(const ModuleGroup& module, const Tensor& input) {
  const std::size_t index = index_of(module);
  unshard(groups_[index], true);
  const bool is_last = index + 1 == groups_.size();
  const bool is_entered = is_tied_ && module.kind == ModuleGroup::Kind::kFinalNorm;
  if (is_last && (has_root_ || is_entered)) {
    return input;
  }
  return eager::with_backward_hook(graph_, input, [this, index] {
    Group& group = groups_[index];
    reshard(group);
    reduce(group);
  });
}

Tensor FullyShard::hook_backward(std::size_t index, const Tensor& output) {
  return eager::with_backward_hook(graph_, output, [this, index] { before_backward(index); });
}

// The root's group is left with the model. A layer that runs again within a backward pass is the
// root of its run: parameters stay, and the gather's output goes.
Tensor FullyShard::leave(const ModuleGroup& module, const Tensor& output) {
  const std::size_t index = index_of(module);
  if (has_root_ && index + 1 == groups_.size()) {
    return output;
  }
  if (graph_.runs_backward()) {
    held_output_ = {};
  } else if (groups_[index].reshards) {
    reshard(groups_[index]);
  }
  return hook_backward(index, output);
}

Tensor FullyShard::leave_model(const Tensor& loss) {
  if (!has_root_) {
    return loss;
  }
  if (groups_.back().reshards) {
    reshard(groups_.back());
  }
  return hook_backward(groups_.size() - 1, loss);
}

// Gathered again, and the group before it ahead.
void FullyShard::before_backward(std::size_t index) {
  unshard(groups_[index], false);
  if (index > 0) {
    gather(groups_[index - 1]);
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
  reduction_input_ = graph_.make(ranks_ * shard, gathered_);
  const Tensor named = std::move(gradients.back());
  while (!gradients.empty()) { gradients.pop_back(); }  // as a list of Python does
  const bool casts = holder->dtype != gathered_;
  const Tensor narrow = graph_.make(casts ? shard : 0, gathered_, AllocationStream::kReduce);
  const InRow gradients_row(graph_.tape, kGradientsRow);
  Tensor output = graph_.make(shard, holder->dtype, AllocationStream::kReduce);
  if (!holder->gradient.is_defined() && !offloads_) {
    holder->gradient = std::move(output);
  }
}

// root_post_backward_final_callback.
void FullyShard::end_backward() {
  for (Group& group : groups_) {
    reshard(group);
    reduce(group);
    group.gathered = {};
  }
  reduction_input_ = {};
}

}  // namespace shardplan::transformers
