#include "estimator/frameworks/transformers/flat_shard.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/units.h"

namespace shardplan::transformers {

using eager::InRow;
using eager::Parameter;
using eager::Tensor;
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

FlatShard::FlatShard(eager::Graph& graph, const Job& job, const Plan& plan)
    : Holder(graph),
      job_(job),
      reshards_(plan.zero == 3),
      offloads_(plan.offload.parameters),
      gathered_(compute_dtype(plan)),
      ranks_(dense_shard_size(job, plan)),
      num_layers_(job.model.layers.size()) {
  groups_.resize(2 * num_layers_ + 1);
  tower_.resize(static_cast<std::size_t>(2 * job.model.tower.layers + 1));
  for (std::vector<Group>* groups : {&groups_, &tower_}) {
    for (Group& group : *groups) {
      group.gathered = std::make_shared<eager::Storage>(graph_.tape, TapeTensor{});
    }
  }
}

// Trained parameters beside frozen ones are wrapped for themselves (fsdp_auto_wrap_policy); one
// group of a layer's stands for them, whose matrices are small.
FlatShard::Group& FlatShard::group_of(const ModuleGroup& module, bool is_trained) {
  const bool is_tower_layer = module.kind == ModuleGroup::Kind::kTowerLayer;
  if (module.is_of_tower() && is_trained && job_.adapters.rank > 0) {
    const std::int64_t place = is_tower_layer ? module.layer : job_.model.tower.layers;
    return tower_[static_cast<std::size_t>(job_.model.tower.layers + place)];
  }
  if (is_tower_layer && job_.profile.fsdp_wraps_tower) {
    return tower_[static_cast<std::size_t>(module.layer)];
  }
  if (module.kind != ModuleGroup::Kind::kLayer) {
    return root();
  }
  const bool is_adapter = is_trained && job_.adapters.rank > 0;
  const auto layer = static_cast<std::size_t>(module.layer);
  return groups_[is_adapter ? num_layers_ + layer : layer];
}

std::int64_t FlatShard::shard_elements(const Group& group) const {
  return div_ceil(group.elements, ranks_);
}

// prepare_model: trained flat parameters become fp32 where there is mixed precision.
void FlatShard::load(Parameter& parameter, const eager::Label& /*label*/, const Shape& shape,
                     DType dtype, bool is_trained) {
  Group& group = group_of(loading_, is_trained);
  parameter.rows = shape.rows;
  parameter.dtype = is_trained || group.is_trained ? DType::kFp32 : dtype;
  parameter.is_trained = is_trained;
  parameter.data = {
      .storage = group.gathered, .elements = shape.elements(), .dtype = gathered_, .node = nullptr};
  group.members.push_back({.parameter = &parameter, .offset = group.elements, .gradient = {}});
  group.elements += shape.elements();
  group.dtype = parameter.dtype;
  group.is_trained = group.is_trained || is_trained;
  group.num_expected += is_trained && parameter.is_reached ? 1 : 0;
  if (is_trained) {
    parameter.data = graph_.make_leaf(parameter.data, [this, &group, &parameter](Tensor gradient) {
      take(group, parameter, std::move(gradient));
    });
  }
}

void FlatShard::wrap(const std::vector<Parameter*>& /*trained*/) {
  rank_ = rank_of_most();
  for (const std::vector<Group>* groups : {&groups_, &tower_}) {
    const InRow row(graph_.tape, groups == &groups_ ? kShardRow : kTowerRow);
    for (const Group& group : *groups) {
      shards_.push_back(graph_.make(offloads_ ? 0 : shard_elements(group), group.dtype));
    }
  }
}

std::int64_t FlatShard::held_elements(const Parameter& parameter) const {
  for (const Group& group : groups_) {
    const auto member = std::ranges::find(group.members, &parameter, &Member::parameter);
    if (member != group.members.end()) {
      return held_of(group, *member, rank_);
    }
  }
  return 0;
}

std::int64_t FlatShard::held_of(const Group& group, const Member& member, std::int64_t rank) const {
  const std::int64_t shard = shard_elements(group);
  const std::int64_t begin = std::max(member.offset, rank * shard);
  const std::int64_t end =
      std::min(member.offset + member.parameter->data.elements, (rank + 1) * shard);
  return std::max<std::int64_t>(end - begin, 0);
}

// Of the first rank and the last, whose part of a flat tensor may be padding, the one that has more
// of what the optimizer steps: frozen parameters may lie in front.
std::int64_t FlatShard::rank_of_most() const {
  const auto stepped_by = [this](std::int64_t rank) {
    std::int64_t elements = 0;
    for (const Group& group : groups_) {
      for (const Member& member : group.members) {
        const bool is_stepped = member.parameter->is_trained && member.parameter->is_reached;
        elements += is_stepped ? held_of(group, member, rank) : 0;
      }
    }
    return elements;
  };
  return stepped_by(ranks_ - 1) > stepped_by(0) ? ranks_ - 1 : 0;
}

// The shard in the gathered type goes once the flat parameter is gathered from it (pre_unshard,
// unshard, post_unshard); one of the host's comes in its own type first.
void FlatShard::unshard(Group& group) {
  if (group.elements == 0 || !group.gathered->is_empty()) {
    return;
  }
  constexpr AllocationStream kStream = AllocationStream::kGather;
  const std::int64_t shard = shard_elements(group);
  const InRow row(graph_.tape, kGatherBufferRow);
  const bool casts = group.dtype != gathered_;
  const Tensor input = graph_.make(casts || offloads_ ? shard : 0, gathered_, kStream);
  const Tensor as_it_is = graph_.make(casts && offloads_ ? shard : 0, group.dtype, kStream);
  const InRow gathered_row(graph_.tape, kGatheredRow);
  group.gathered->fill(ranks_ * shard * bytes_of(gathered_), gathered_, kStream);
}

void FlatShard::unshard_layer(std::size_t layer) {
  unshard(groups_[layer]);
  unshard(groups_[num_layers_ + layer]);
}

void FlatShard::reshard(Group& group) {
  group.gathered->empty();
}

// A frozen group goes again once its inputs have their gradients
// (_register_post_backward_reshard_only_hook).
Tensor FlatShard::enter(const ModuleGroup& module, const Tensor& input) {
  if (module.kind != ModuleGroup::Kind::kLayer) {
    unshard(root());
    return input;
  }
  const auto layer = static_cast<std::size_t>(module.layer);
  unshard_layer(layer);
  if (groups_[layer].is_trained) {
    return input;
  }
  return eager::with_backward_hook(graph_, input, [this, layer] {
    // Adapters have come one after the other, the first of them in front of the layer before.
    if (layer > 0 && job_.profile.fsdp_prefetch == FsdpPrefetch::kBackwardPre) {
      unshard_layer(layer - 1);
    }
    reshard(groups_[layer]);
  });
}

Tensor FlatShard::leave(const ModuleGroup& module, const Tensor& output) {
  if (module.kind != ModuleGroup::Kind::kLayer) {
    return output;
  }
  const auto layer = static_cast<std::size_t>(module.layer);
  if (reshards_) {
    reshard(groups_[layer]);
    reshard(groups_[num_layers_ + layer]);
  }
  return eager::with_backward_hook(graph_, output, [this, layer] {
    unshard_layer(layer);
    const bool is_ahead = job_.profile.fsdp_prefetch == FsdpPrefetch::kBackwardPre;
    if (is_ahead && layer > 0 && groups_[layer].is_trained) {
      unshard_layer(layer - 1);
    }
  });
}

// The root's parameters stay from the forward pass on.
Tensor FlatShard::leave_model(const Tensor& loss) {
  return eager::with_backward_hook(graph_, loss, [this] {
    if (job_.profile.fsdp_prefetch == FsdpPrefetch::kBackwardPre) {
      unshard_layer(num_layers_ - 1);
    }
  });
}

void FlatShard::take(Group& group, const Parameter& parameter, Tensor gradient) {
  std::ranges::find(group.members, &parameter, &Member::parameter)->gradient = std::move(gradient);
  if (++group.num_arrived == group.num_expected) {
    group.num_arrived = 0;
    flatten_gradients(group);
  }
}

// Weights are views that split gave: its derivative puts their gradients together, and is added to
// that of microbatches before (_post_backward_hook).
void FlatShard::flatten_gradients(Group& group) {
  {
    const InRow row(graph_.tape, eager::kWeightGradientsRow);
    Tensor flat = graph_.make(group.elements, gathered_);
    for (Member& member : group.members) { member.gradient = {}; }
    if (!group.gradient.is_defined()) {
      group.gradient = std::move(flat);
    }
  }
  if (syncs_ || reshards_) {
    reshard(group);
  }
  const auto layer = static_cast<std::size_t>(&group - groups_.data());
  if (job_.profile.fsdp_prefetch == FsdpPrefetch::kBackwardPost && &group != &root() &&
      layer % num_layers_ > 0) {
    unshard_layer(layer % num_layers_ - 1);
  }
  if (syncs_) {
    reduce(group);
  }
}

// _reduce_grad: into a shard in the reduced type, which becomes the parameter's.
void FlatShard::reduce(Group& group) {
  const std::int64_t shard = shard_elements(group);
  const InRow row(graph_.tape, kReduceBufferRow);
  const Tensor unsharded = std::exchange(group.gradient, {});
  const bool is_padded = ranks_ * shard != group.elements;
  const Tensor padded = graph_.make(is_padded ? ranks_ * shard : 0, gathered_);
  const Tensor narrow = graph_.make(shard, gathered_, AllocationStream::kReduce);
  const InRow gradients_row(graph_.tape, kGradientsRow);
  Tensor wide = graph_.make(shard, group.dtype, AllocationStream::kReduce);
  if (!offloads_) {
    group.reduced = std::move(wide);
  }
}

// Original parameters lose their gradients with a step, flat ones with the next forward pass
// (_reset_flat_param_grad_info_if_needed).
void FlatShard::begin_microbatch(bool syncs) {
  syncs_ = syncs;
  for (Group& group : groups_) { group.reduced = {}; }
}

// _post_backward_final_callback.
void FlatShard::end_backward() {
  for (Group& group : groups_) { reshard(group); }
}

}  // namespace shardplan::transformers
