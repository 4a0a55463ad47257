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
using huggingface::compute_dtype;
using huggingface::Holder;
using huggingface::kGatherBufferRow;
using huggingface::kGatheredRow;
using huggingface::kGradientsRow;
using huggingface::kReduceBufferRow;
using huggingface::kShardRow;
using huggingface::kTowerRow;
using huggingface::ModuleGroup;
using huggingface::Shape;

namespace {

// LLaMA-Factory's version 1 shards over a mesh of two dimensions, of which replicas are one even
// where there are none (accelerator/interface.py, DistributedInterface.__init__).
bool has_replicas(const Job& job, const Plan& plan) {
  return plan.dp_replicate > 1 || job.profile.loop == TrainerLoop::kFactoryV1;
}

}  // namespace

FullyShard::FullyShard(eager::Graph& graph, const Job& job, const Plan& plan)
    : Holder(graph),
      job_(job),
      ranks_(dense_shard_size(job, plan)),
      num_layers_(job.model.num_layers()),
      gathered_(compute_dtype(plan)),
      reduced_(job.profile.fsdp_reduce_dtype == DType::kFp32 ? DType::kFp32 : gathered_),
      offloads_(plan.offload.parameters),
      is_tied_(job.model.tied_embeddings),
      has_root_(job.profile.fsdp_ends == FsdpEnds::kRoot ||
                job.profile.fsdp_ends == FsdpEnds::kEmbeddingApart),
      holds_table_(is_tied_ || job.profile.fsdp_ends == FsdpEnds::kRoot),
      reshards_layers_(plan.zero == 3),
      shards_adapters_(job.profile.fsdp_adapters_alone && job.adapters.rank > 0),
      sums_replicas_(has_replicas(job, plan)) {
  groups_.resize(static_cast<std::size_t>(num_layers_ + 2));
  for (Group& group : groups_) { group.reshards = reshards_layers_; }
  // fully_shard leaves a root gathered that is not told otherwise (_fsdp_state.py, _lazy_init).
  tail().reshards = has_root_ && reshards_layers_ && job.profile.loop != TrainerLoop::kScript;
  if (shards_adapters_) {
    graph_.modules = this;
  }
}

FullyShard::Group& FullyShard::group_of(const ModuleGroup& module) {
  using enum ModuleGroup::Kind;
  switch (module.kind) {
    case kEmbedding: return holds_table_ ? tail() : groups_.front();
    case kLayer: return groups_[static_cast<std::size_t>(module.layer) + 1];
    case kTowerLayer:
      if (job_.profile.fsdp_wraps_tower) {
        return tower_layers_;
      }
      [[fallthrough]];
    case kTowerRest: return has_root_ ? tail() : tower_rest_;
    case kFinalNorm:
    case kHead: break;
  }
  return tail();
}

FullyShard::Group* FullyShard::alone(const eager::Module& module) {
  const auto found =
      module.parameters.size() == 1 ? alone_.find(module.parameters.front()) : alone_.end();
  return found == alone_.end() ? nullptr : found->second;
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

FullyShard::Group& FullyShard::group_to_load(const Parameter& parameter) {
  if (!shards_adapters_ || !parameter.is_trained) {
    return group_of(loading_);
  }
  if (loading_.is_of_tower()) {
    return tower_layers_;  // a matrix by itself that nobody calls, either
  }
  Group& group = adapters_.emplace_back();
  group.reshards = reshards_layers_;
  group.layer = loading_.layer;
  alone_[&parameter] = &group;
  return group;
}

// In the order in which their forward passes end (post_forward_order).
void FullyShard::order_groups() {
  Group* last = nullptr;
  const auto follow = [&last](Group& group) { group.before = std::exchange(last, &group); };
  follow(groups_.front());
  auto adapter = adapters_.begin();
  for (std::int64_t layer = 0; layer < num_layers_; ++layer) {
    for (; adapter != adapters_.end() && adapter->layer == layer; ++adapter) { follow(*adapter); }
    follow(group_of({ModuleGroup::Kind::kLayer, layer}));
  }
  follow(tail());
}

void FullyShard::keep_shard(const Member& member) {
  const InRow row(graph_.tape, member.is_of_tower ? kTowerRow : kShardRow);
  const Parameter& parameter = *member.parameter;
  shards_.push_back(graph_.make(offloads_ ? 0 : shard_elements(parameter), parameter.dtype));
}

// A group's shards are made beside its whole parameters (_fsdp_param.py, _init_sharded_param).
void FullyShard::shard_whole(Group& group) {
  for (const Member& member : group.members) { keep_shard(member); }
  group.whole.clear();
}

// LLaMA-Factory's version 1 takes a norm of zeros to make its communicators (_warmup_grad_norm).
void FullyShard::wrap(const std::vector<Parameter*>& trained) {
  order_groups();
  if (job_.profile.loads_whole) {
    for (Group& group : adapters_) { shard_whole(group); }
    for (Group& group : groups_) { shard_whole(group); }
    for (Group* group : {&tower_layers_, &tower_rest_}) { shard_whole(*group); }
  }
  if (job_.profile.loop == TrainerLoop::kFactoryV1) {
    const InRow row(graph_.tape, kGradientsRow);
    eager::Tensors zeros;
    for (const Parameter* each : trained) {
      zeros.push_back(graph_.make(shard_elements(*each), each->dtype));
    }
  }
}

void FullyShard::load(Parameter& parameter, const eager::Label& label, const Shape& shape,
                      DType dtype, bool is_trained) {
  parameter.rows = shape.rows;
  parameter.dtype = is_upcast(is_trained) ? DType::kFp32 : dtype;
  parameter.is_trained = is_trained;
  parameter.data.elements = shape.elements();
  Group& group = group_to_load(parameter);
  const Member member = {
      .parameter = &parameter, .gradient = {}, .is_of_tower = loading_.is_of_tower()};
  if (job_.profile.loads_whole) {
    const InRow row(graph_.tape, label);
    group.whole.push_back(graph_.make(parameter.data.elements, parameter.dtype));
  } else {
    keep_shard(member);
  }
  // The tail's modules are the final norm, then the table or the head.
  const bool is_first = loading_.kind == ModuleGroup::Kind::kFinalNorm && !has_root_;
  group.members.insert(is_first ? group.members.begin() : group.members.end(), member);
  parameter.data.dtype = gathered_;
  parameter.data.storage = std::make_shared<eager::Storage>(graph_.tape, TapeTensor{});
  parameter.data.storage->is_parameter = true;
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

// The inputs go with the copy into the output (all_gather_copy_in).
void FullyShard::gather(Group& group) {
  if (group.members.empty() || is_unsharded(group) || group.gathered.is_defined()) {
    return;
  }
  const InRow row(graph_.tape, kGatherBufferRow);
  std::int64_t all = 0;
  for (const auto& [parameter, gradient, is_of_tower] : group.members) {
    all += shard_elements(*parameter);
  }
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
    for (const auto& [parameter, gradient, is_of_tower] : group.members) {
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
  reduction_input_ = graph_.make(ranks_ * shard, reduced_);
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
  finish(tower_rest_);
  for (Group& group : adapters_) { finish(group); }
  reduction_input_ = {};
  summed_.clear();
}

}  // namespace shardplan::transformers
