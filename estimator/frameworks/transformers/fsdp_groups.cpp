// How FSDP2 puts parameters into groups, and what a rank holds of them.
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
using huggingface::kGradientsRow;
using huggingface::kShardRow;
using huggingface::kTowerRow;
using huggingface::ModuleGroup;
using huggingface::Shape;

namespace {

// Packed values, which are gathered as they are (axolotl 067b021 monkeypatch/fsdp2_qlora.py
// apply_init_dtype_attrs_patch, monkeypatch/accelerate/fsdp2_quantized.py nonfloat_param_guard).
bool is_of_bytes(DType dtype) {
  return dtype == DType::kBool;
}

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
      expert_ranks_(ranks_ / plan.ep),
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
  for (Group& group : groups_) {
    group.reshards = reshards_layers_;
    group.ranks = ranks_;
  }
  experts_.resize(plan.ep > 1 ? static_cast<std::size_t>(num_layers_) : 0);
  for (Group& group : experts_) {
    group.reshards = reshards_layers_;
    group.ranks = expert_ranks_;
  }
  tower_layers_.ranks = ranks_;
  tower_rest_.ranks = ranks_;
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
    case kExperts: return experts_[static_cast<std::size_t>(module.layer)];
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

// Experts that are dealt to ranks are shared by those that have the same (axolotl 067b021
// integrations/expert_parallel/plugin.py fully_shard_experts).
std::int64_t FullyShard::ranks_of(const Parameter& parameter) const {
  return parameter.whole_elements > 0 ? expert_ranks_ : ranks_;
}

// The first dimension is divided, rounded up.
std::int64_t FullyShard::shard_elements(const Parameter& parameter) const {
  return div_ceil(parameter.rows, ranks_of(parameter)) * (parameter.data.elements / parameter.rows);
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
  group.ranks = ranks_;
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
    if (!experts_.empty() && !experts_[static_cast<std::size_t>(layer)].members.empty()) {
      follow(experts_[static_cast<std::size_t>(layer)]);
    }
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
    for (Group& group : experts_) { shard_whole(group); }
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
  parameter.dtype = is_upcast(is_trained) && !is_of_bytes(dtype) ? DType::kFp32 : dtype;
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
  parameter.data.dtype = is_of_bytes(dtype) ? dtype : gathered_;
  parameter.data.storage = std::make_shared<eager::Storage>(graph_.tape, TapeTensor{});
  parameter.data.storage->is_parameter = true;
  if (is_trained) {
    parameter.data = graph_.make_leaf(parameter.data, [this, &group, &parameter](Tensor gradient) {
      take(group, parameter, std::move(gradient));
    });
  }
}

}  // namespace shardplan::transformers
