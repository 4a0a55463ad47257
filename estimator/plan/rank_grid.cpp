#include "estimator/plan/rank_grid.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "estimator/plan/layer_partition.h"

namespace shardplan {
namespace {

// One axis of a group: members at base, base + stride, ... A group is the product of its axes.
struct Axis {
  std::int64_t size = 1;
  std::int64_t stride = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

// Axes from fastest to slowest; neighbours that continue each other are merged.
class Axes {
 public:
  void add(std::int64_t size, std::int64_t stride) {
    if (size == 1) {
      return;
    }
    if (count_ > 0 && axes_[count_ - 1].stride * axes_[count_ - 1].size == stride) {
      axes_[count_ - 1].size *= size;
    } else {
      axes_[count_++] = {.size = size, .stride = stride};
    }
  }
  const Axis* begin() const { return axes_.data(); }
  const Axis* end() const { return axes_.data() + count_; }

 private:
  std::array<Axis, 8> axes_;
  std::size_t count_ = 0;
};

std::int64_t size_of(const Job& job, const Plan& plan, Dimension dimension) {
  switch (dimension) {
    case Dimension::kPp: return plan.pp;
    case Dimension::kDp: return data_parallel_size(job, plan);
    case Dimension::kCp: return plan.cp;
    case Dimension::kTp: return plan.tp;
  }
  throw std::logic_error("size_of: unknown dimension");
}

std::int64_t stride_of(const Job& job, const Plan& plan, Dimension dimension) {
  std::int64_t stride = 1;
  for (std::size_t i = plan.rank_order.size(); i-- > 0;) {
    if (plan.rank_order[i] == dimension) {
      return stride;
    }
    stride *= size_of(job, plan, plan.rank_order[i]);
  }
  throw std::logic_error("stride_of: rank_order misses a dimension");
}

// Axes of a product of grid dimensions, fastest first.
Axes grid_axes(const Job& job, const Plan& plan, Dimension a, Dimension b) {
  Axes axes;
  for (std::size_t i = plan.rank_order.size(); i-- > 0;) {
    const Dimension dimension = plan.rank_order[i];
    if (dimension == a || dimension == b) {
      axes.add(size_of(job, plan, dimension), stride_of(job, plan, dimension));
    }
  }
  return axes;
}

// Dense shards: the fastest dp / dp_replicate of dp, together with cp.
Axes dense_shard_axes(const Job& job, const Plan& plan) {
  Axes axes;
  const std::int64_t shard = div_exact(data_parallel_size(job, plan), plan.dp_replicate);
  for (std::size_t i = plan.rank_order.size(); i-- > 0;) {
    const Dimension dimension = plan.rank_order[i];
    if (dimension == Dimension::kCp) {
      axes.add(plan.cp, stride_of(job, plan, dimension));
    } else if (dimension == Dimension::kDp) {
      axes.add(shard, stride_of(job, plan, dimension));
    }
  }
  return axes;
}

// A run of `size` ranks with `stride` in the numbering of one pipeline stage's ranks, as axes of
// global ranks: beyond the pipeline dimension every stride grows by pp.
Axes stage_axes(const Job& job, const Plan& plan, std::int64_t size, std::int64_t stride) {
  const std::int64_t pp_stride = stride_of(job, plan, Dimension::kPp);
  Axes axes;
  if (stride >= pp_stride) {
    axes.add(size, stride * plan.pp);
  } else {
    const std::int64_t below = std::gcd(size, std::max<std::int64_t>(1, pp_stride / stride));
    axes.add(below, stride);
    axes.add(size / below, stride * below * plan.pp);
  }
  return axes;
}

struct StageRun {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

// Expert groups in the numbering of one stage's ranks: etp fastest, then ep, then expert-dp.
StageRun expert_run(const Job& job, const Plan& plan, GroupKind kind) {
  const std::int64_t shard = expert_shard_size(job, plan);
  const std::int64_t experts = plan.etp * plan.ep;
  switch (kind) {
    case GroupKind::kEtp: return {.size = plan.etp, .stride = 1};
    case GroupKind::kEp: return {.size = plan.ep, .stride = plan.etp};
    case GroupKind::kExperts: return {.size = experts, .stride = 1};
    case GroupKind::kExpertDp: return {.size = shard * plan.dp_replicate, .stride = experts};
    case GroupKind::kExpertShard: return {.size = shard, .stride = experts};
    case GroupKind::kExpertReplica: return {.size = plan.dp_replicate, .stride = experts * shard};
    default: throw std::logic_error("expert_run: not an expert group");
  }
}

// The stages of embedding and head share the tied table; the V placement keeps both ends on one
// rank.
bool ends_on_two_ranks(const Job& job, const Plan& plan) {
  return !row_of(plan.schedule).places_in_v && head_stage(job, plan) > 0;
}

Axes group_axes(const Job& job, const Plan& plan, GroupKind kind) {
  switch (kind) {
    case GroupKind::kTp: return grid_axes(job, plan, Dimension::kTp, Dimension::kTp);
    case GroupKind::kCp: return grid_axes(job, plan, Dimension::kCp, Dimension::kCp);
    case GroupKind::kDp: return grid_axes(job, plan, Dimension::kDp, Dimension::kDp);
    case GroupKind::kPp: return grid_axes(job, plan, Dimension::kPp, Dimension::kPp);
    case GroupKind::kEmbedding: throw std::logic_error("group_axes: not a product of axes");
    case GroupKind::kDpCp: return grid_axes(job, plan, Dimension::kDp, Dimension::kCp);
    case GroupKind::kTpCp: return grid_axes(job, plan, Dimension::kTp, Dimension::kCp);
    case GroupKind::kDenseShard: return dense_shard_axes(job, plan);
    case GroupKind::kDenseReplica: {
      Axes axes;
      axes.add(plan.dp_replicate, stride_of(job, plan, Dimension::kDp) *
                                      div_exact(data_parallel_size(job, plan), plan.dp_replicate));
      return axes;
    }
    case GroupKind::kEp:
    case GroupKind::kEtp:
    case GroupKind::kExperts:
    case GroupKind::kExpertDp:
    case GroupKind::kExpertShard:
    case GroupKind::kExpertReplica: {
      const StageRun run = expert_run(job, plan, kind);
      return stage_axes(job, plan, run.size, run.stride);
    }
  }
  throw std::logic_error("group_axes: unknown kind of group");
}

// The members that lie together in an aligned block of `block` ranks, for every group of the kind:
// an axis contributes what its stride and the block's boundary leave whole.
std::int64_t ranks_per_block(const Axes& axes, std::int64_t block) {
  std::int64_t together = 1;
  for (const Axis& axis : axes) {
    if (block % axis.stride == 0) {
      together *= std::gcd(axis.size, block / axis.stride);
    }
  }
  return together;
}

GroupShape shape_of(const Job& job, const Axes& axes) {
  GroupShape shape;
  for (const Axis& axis : axes) {
    shape.stride = shape.size == 1 ? axis.stride : shape.stride;
    shape.size *= axis.size;
  }
  shape.ranks_per_domain = ranks_per_block(axes, job.cluster.gpus_per_domain());
  shape.ranks_per_node = ranks_per_block(axes, job.cluster.gpus_per_node);
  return shape;
}

// Both ends are surely together only where the whole pipeline is.
GroupShape embedding_shape(const Job& job, const Plan& plan) {
  if (!ends_on_two_ranks(job, plan)) {
    return {};
  }
  const GroupShape pipeline = shape_of(job, group_axes(job, plan, GroupKind::kPp));
  return {.size = 2,
          .stride = pipeline.stride * head_stage(job, plan),
          .ranks_per_domain = pipeline.ranks_per_domain == plan.pp ? 2 : 1,
          .ranks_per_node = pipeline.ranks_per_node == plan.pp ? 2 : 1};
}

std::vector<std::int64_t> embedding_ranks(const Job& job, const Plan& plan, std::int64_t rank) {
  if (!ends_on_two_ranks(job, plan)) {
    return {rank};
  }
  RankCoordinates at = coordinates_of(job, plan, rank);
  if (at.pp != 0 && at.pp != head_stage(job, plan)) {
    return {};
  }
  at.pp = 0;
  const std::int64_t first = rank_of(job, plan, at);
  return {first, first + embedding_shape(job, plan).stride};
}

// Index of a rank among the ranks of its pipeline stage, and back.
std::int64_t stage_index_of(const Job& job, const Plan& plan, std::int64_t rank) {
  const std::int64_t stride = stride_of(job, plan, Dimension::kPp);
  return rank / (stride * plan.pp) * stride + rank % stride;
}

std::int64_t rank_in_stage(const Job& job, const Plan& plan, std::int64_t pp, std::int64_t index) {
  const std::int64_t stride = stride_of(job, plan, Dimension::kPp);
  return index / stride * stride * plan.pp + pp * stride + index % stride;
}

std::vector<std::int64_t> expert_group_ranks(const Job& job, const Plan& plan, GroupKind kind,
                                             std::int64_t rank) {
  const StageRun run = expert_run(job, plan, kind);
  const std::int64_t pp = coordinates_of(job, plan, rank).pp;
  const std::int64_t index = stage_index_of(job, plan, rank);
  const std::int64_t first = index - index / run.stride % run.size * run.stride;
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < run.size; ++i) {
    ranks.push_back(rank_in_stage(job, plan, pp, first + i * run.stride));
  }
  return ranks;
}

}  // namespace

RankCoordinates coordinates_of(const Job& job, const Plan& plan, std::int64_t rank) {
  const auto at = [&](Dimension dimension) {
    return rank / stride_of(job, plan, dimension) % size_of(job, plan, dimension);
  };
  return {.pp = at(Dimension::kPp),
          .dp = at(Dimension::kDp),
          .cp = at(Dimension::kCp),
          .tp = at(Dimension::kTp)};
}

std::int64_t rank_of(const Job& job, const Plan& plan, const RankCoordinates& at) {
  return at.pp * stride_of(job, plan, Dimension::kPp) +
         at.dp * stride_of(job, plan, Dimension::kDp) +
         at.cp * stride_of(job, plan, Dimension::kCp) +
         at.tp * stride_of(job, plan, Dimension::kTp);
}

std::int64_t group_size(const Job& job, const Plan& plan, GroupKind kind) {
  switch (kind) {
    case GroupKind::kTp: return plan.tp;
    case GroupKind::kCp: return plan.cp;
    case GroupKind::kPp: return plan.pp;
    case GroupKind::kEp:
    case GroupKind::kEtp:
    case GroupKind::kExperts:
    case GroupKind::kExpertDp:
    case GroupKind::kExpertShard:
    case GroupKind::kExpertReplica: return expert_run(job, plan, kind).size;
    case GroupKind::kEmbedding: return ends_on_two_ranks(job, plan) ? 2 : 1;
    default: return shape_of(job, group_axes(job, plan, kind)).size;
  }
}

GroupShape group_shape(const Job& job, const Plan& plan, GroupKind kind) {
  const bool divides_nothing =
      (kind == GroupKind::kTp && plan.tp == 1) || (kind == GroupKind::kCp && plan.cp == 1) ||
      (kind == GroupKind::kPp && plan.pp == 1) || (kind == GroupKind::kEp && plan.ep == 1) ||
      (kind == GroupKind::kEtp && plan.etp == 1);
  if (divides_nothing) {
    return {};
  }
  return kind == GroupKind::kEmbedding ? embedding_shape(job, plan)
                                       : shape_of(job, group_axes(job, plan, kind));
}

bool same_members(const Job& job, const Plan& plan, GroupKind a, GroupKind b) {
  const Axes first = group_axes(job, plan, a);
  const Axes second = group_axes(job, plan, b);
  return std::equal(first.begin(), first.end(), second.begin(), second.end());
}

std::vector<std::int64_t> group_ranks(const Job& job, const Plan& plan, GroupKind kind,
                                      std::int64_t rank) {
  if (kind == GroupKind::kEtp || kind == GroupKind::kEp || kind == GroupKind::kExperts ||
      kind == GroupKind::kExpertDp || kind == GroupKind::kExpertShard ||
      kind == GroupKind::kExpertReplica) {
    return expert_group_ranks(job, plan, kind, rank);
  }
  if (kind == GroupKind::kEmbedding) {
    return embedding_ranks(job, plan, rank);
  }
  const Axes axes = group_axes(job, plan, kind);
  std::vector<std::int64_t> ranks = {rank};
  for (const Axis& axis : axes) {
    ranks.front() -= ranks.front() / axis.stride % axis.size * axis.stride;
  }
  for (const Axis& axis : axes) {
    const std::size_t count = ranks.size();
    for (std::int64_t i = 1; i < axis.size; ++i) {
      for (std::size_t j = 0; j < count; ++j) { ranks.push_back(ranks[j] + i * axis.stride); }
    }
  }
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace shardplan
