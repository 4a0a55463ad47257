#include "estimator/frameworks/transformers/fsdp.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/plan/units.h"

namespace shardplan::transformers {

using eager::InRow;
using eager::NodeBuilder;
using eager::Parameter;
using eager::Tensor;
using eager::Tensors;
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

void FullyShard::begin_group(const ModuleGroup& module) {
  loading_ = index_of(module);
}

// The first dimension is divided, rounded up.
std::int64_t FullyShard::shard_elements(const Parameter& parameter) const {
  return div_ceil(parameter.rows, ranks_) * (parameter.data.elements / parameter.rows);
}

void FullyShard::load(Parameter& parameter, const eager::Label& /*label*/, const Shape& shape,
                      DType dtype, bool is_trained) {
  parameter.rows = shape.rows;
  const FsdpUpcast upcast = job_.profile.fsdp_upcast;
  const bool is_upcast =
      upcast == FsdpUpcast::kAll || (upcast == FsdpUpcast::kTrained && is_trained);
  parameter.dtype = is_upcast ? DType::kFp32 : dtype;
  parameter.is_trained = is_trained;
  parameter.data.elements = shape.elements();
  const InRow row(graph_.tape, kShardRow);
  shards_.push_back(graph_.make(shard_elements(parameter), parameter.dtype));
  Group& group = groups_[loading_];
  group.parameters.push_back(&parameter);
  parameter.data.dtype = DType::kBf16;
  parameter.data.storage = std::make_shared<eager::Storage>(graph_.tape, TapeTensor{});
  if (is_trained) {
    parameter.data = graph_.make_leaf(parameter.data, [&group, &parameter](Tensor gradient) {
      take(group, parameter, std::move(gradient));
    });
  }
}

bool FullyShard::is_unsharded(const Group& group) const {
  return !group.parameters.front()->data.storage->is_empty();
}

// The shards in the gathered type, flat, and the output (all_gather_copy_in).
void FullyShard::gather(Group& group) {
  if (group.parameters.empty() || is_unsharded(group) || group.gathered.is_defined()) {
    return;
  }
  const InRow row(graph_.tape, kGatherBufferRow);
  std::int64_t all = 0;
  std::int64_t cast = 0;
  for (const Parameter* parameter : group.parameters) {
    all += shard_elements(*parameter);
    cast += parameter->dtype == parameter->data.dtype ? 0 : shard_elements(*parameter);
  }
  const Tensor input = graph_.make(cast, DType::kBf16, AllocationStream::kGather);
  group.gathered = graph_.make(ranks_ * all, DType::kBf16, AllocationStream::kGather);
}

void FullyShard::unshard(Group& group, bool holds_output) {
  if (group.parameters.empty() || is_unsharded(group)) {
    return;
  }
  gather(group);
  {
    const InRow row(graph_.tape, kGatheredRow);
    for (Parameter* parameter : group.parameters) {
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
  for (Parameter* parameter : group.parameters) { parameter->data.storage->empty(); }
}

// Behind the group's backward pass its gradients are reduced (RegisterPostBackwardFunction).
Tensor FullyShard::enter(const ModuleGroup& module, const Tensor& input) {
  const std::size_t index = index_of(module);
  unshard(groups_[index], true);
  if (has_root_ && index + 1 == groups_.size()) {
    return input;
  }
  NodeBuilder node(graph_, {&input});
  Tensor alias = input;
  return node.finish(std::move(alias), [this, index](eager::BackwardCall& call) {
    Group& group = groups_[index];
    reshard(group);
    reduce(group);
    return std::move(call.gradients);
  });
}

Tensor FullyShard::hook_backward(std::size_t index, const Tensor& output) {
  NodeBuilder node(graph_, {&output});
  Tensor alias = output;
  return node.finish(std::move(alias), [this, index](eager::BackwardCall& call) {
    before_backward(index);
    return std::move(call.gradients);
  });
}

// The root's group is left with the model.
Tensor FullyShard::leave(const ModuleGroup& module, const Tensor& output) {
  const std::size_t index = index_of(module);
  if (has_root_ && index + 1 == groups_.size()) {
    return output;
  }
  if (groups_[index].reshards) {
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

// Later microbatches add to the first one's gradient in place.
void FullyShard::take(Group& group, const Parameter& parameter, Tensor gradient) {
  if (std::ranges::find(group.gradients, &parameter, &WholeGradient::parameter) ==
      group.gradients.end()) {
    group.gradients.push_back({&parameter, std::move(gradient)});
  }
}

// foreach_reduce: gradients are freed once they lie in the reduction's input, but for the last one,
// which a variable still names. Microbatches that do not reduce leave them whole
// (accelerator.no_sync; _fsdp_param_group.py post_backward).
void FullyShard::reduce(Group& group) {
  if (!syncs_ || group.gradients.empty()) {
    return;
  }
  const InRow row(graph_.tape, kReduceBufferRow);
  std::int64_t shard = 0;
  for (const Parameter* parameter : group.parameters) {
    shard += parameter->is_trained ? shard_elements(*parameter) : 0;
  }
  reduction_input_ = {};
  reduction_input_ = graph_.make(ranks_ * shard, DType::kBf16);
  const Tensor named = std::move(group.gradients.back().gradient);
  group.gradients.clear();
  const Tensor output = graph_.make(shard, DType::kBf16, AllocationStream::kReduce);
  const InRow gradients_row(graph_.tape, kGradientsRow);
  Tensor wide = graph_.make(shard, DType::kFp32, AllocationStream::kReduce);
  Parameter* holder = nullptr;
  for (Parameter* parameter : group.parameters) {
    if (parameter->is_trained && holder == nullptr) {
      holder = parameter;
    }
  }
  if (!holder->gradient.is_defined()) {
    holder->gradient = std::move(wide);
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
