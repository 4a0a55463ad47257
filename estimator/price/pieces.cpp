#include "estimator/price/pieces.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "estimator/answer/blocks.h"
#include "estimator/answer/why_invalid.h"

namespace shardplan {
namespace {

template <class Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

std::int64_t order_number(const Plan& plan) {
  std::int64_t order = 0;
  for (const Dimension dimension : plan.rank_order) { order = 4 * order + number(dimension); }
  return order;
}

// Number of a row of `rows`, which is added if it is not there.
template <class Row>
std::int64_t number_in(std::vector<Row>& rows, const Row& row) {
  const auto same = std::ranges::find(rows, row);
  const std::int64_t place = same - rows.begin();
  if (same == rows.end()) {
    rows.push_back(row);
  }
  return place;
}

// Layers, ends and place of a rank, as far as its class goes.
bool is_same_class(const StageLayout& one, const StageLayout& other, std::int64_t pp) {
  const auto stands_at_end = [&](const StageLayout& stage) {
    return std::pair(stage.pp_rank == 0, stage.pp_rank == pp - 1);
  };
  return one.num_layers == other.num_layers && one.ends == other.ends &&
         one.chunks == other.chunks && stands_at_end(one) == stands_at_end(other);
}

}  // namespace

std::size_t index_in(std::vector<std::size_t>& numbers, std::size_t number) {
  const auto same = std::ranges::find(numbers, number);
  const std::size_t index = static_cast<std::size_t>(same - numbers.begin());
  if (same == numbers.end()) {
    numbers.push_back(number);
  }
  return index;
}

static_assert(sizeof(RecomputeModules) < 8, "one byte a module");

std::int64_t recompute_number(const Recompute& recompute) {
  // Policies are torchtitan's; other profiles leave them empty.
  const std::int64_t policy = recompute.policy.empty()                   ? 0
                              : recompute.policy == "every_second_layer" ? 1
                                                                         : 2;
  std::uint64_t modules = 0;
  std::memcpy(&modules, &recompute.modules, sizeof(RecomputeModules));
  return static_cast<std::int64_t>(modules << 8) + 4 * policy + number(recompute.granularity);
}

std::int64_t dtypes_number(const Plan& plan) {
  return (((number(plan.precision) * 16 + number(plan.grad_dtype)) * 16 +
           number(plan.master_dtype)) *
              16 +
          number(plan.exp_avg_dtype)) *
             16 +
         number(plan.exp_avg_sq_dtype);
}

PricePieces::PricePieces(const Job& of_job)
    : job(of_job),
      layer_kinds(shardplan::layer_kinds(of_job.model)),
      is_wide(rows_see_whole_plan(of_job)) {
  for (std::int64_t at = 0; at < kNumBlockKinds; ++at) {
    if (has_block(job, static_cast<BlockKind>(at))) {
      block_kinds.push_back(static_cast<BlockKind>(at));
    }
  }
  using enum PlanField;
  const PlanFields of_split = {kTp, kCp, kEp, kEtp, kPp, kVpp, kDp, kLayersPerChunk};
  const PlanFields of_block =
      of_split.joined({kSchedule, kMicroBatch, kSequenceParallel, kCpMethod, kPrecision});
  for (const ValidityRule& rule : validity_rules(job.profile)) {
    const bool holds_for_job = rule.reads == PlanFields{} && !rule.broken(job, Plan{});
    if (holds_for_job) {
      continue;  // for every plan
    }
    if (of_split.joined(rule.reads) == of_split) {
      split_rules.push_back(&rule);
    } else if (of_block.joined(rule.reads) == of_block) {
      block_rules.push_back(&rule);
    }
  }
}

void PricePieces::build_grid(const Plan& plan, GridPiece& piece) {
  std::array<std::int64_t, 8> lies{};
  std::size_t at = 0;
  for (const GroupKind kind : {GroupKind::kTp, GroupKind::kCp, GroupKind::kEp, GroupKind::kEtp}) {
    const GroupShape shape = group_shape(job, plan, kind);
    lies[at++] = shape.ranks_per_domain;
    lies[at++] = shape.ranks_per_node;
  }
  piece.dp = data_parallel_size(job, plan);
  piece.dense_shard = dense_shard_size(job, plan);
  piece.expert_shard = expert_shard_size(job, plan);
  piece.pp = group_shape(job, plan, GroupKind::kPp);
  piece.links = number_in(links, lies);
  piece.pp_links = number_in(links, {piece.pp.ranks_per_domain, piece.pp.ranks_per_node, -1});
  piece.groups = ShardingGroups(job, plan);
}

ScheduleShape PricePieces::shape(const Plan& plan) const {
  return {.schedule = plan.schedule,
          .pp = plan.pp,
          .vpp = plan.vpp,
          .num_microbatches = div_exact(job.global_batch, grid().dp * plan.micro_batch),
          .group = job.profile.microbatch_group(),
          .tells_gradients = job.profile.layout.blocks_make_gradients,
          .tells_parameters = shards_in_pipeline(job, plan),
          .reshards_forward = reshards_in_pipeline(job, plan)};
}

namespace {

// The same groups of ranks and the same microbatches in them, where rows of blocks do not look at
// how the state is kept.
bool has_same_microbatches(const Job& job, const Plan& one, const Plan& other) {
  const auto axes = [](const Plan& plan) {
    return std::tie(plan.schedule, plan.micro_batch, plan.sequence_parallel, plan.cp_method,
                    plan.precision, plan.rank_order, plan.dp_replicate, plan.tp, plan.cp, plan.ep,
                    plan.etp, plan.pp, plan.vpp, plan.dp, plan.moe_buffer_factor, plan.recompute,
                    plan.layers_per_chunk);
  };
  if (axes(one) != axes(other)) {
    return false;
  }
  const bool has_same_buckets = one.zero == other.zero && one.grad_dtype == other.grad_dtype;
  return has_same_buckets || (!gathers_by_unit(job, one) && !gathers_by_unit(job, other));
}

}  // namespace

void PricePieces::begin(const Plan& plan) {
  if (!is_wide && grid_piece != nullptr && has_same_microbatches(job, plan, begun)) {
    return;
  }
  begun = plan;
  if (plan.layers_per_chunk != layers_per_chunk) {
    layers_per_chunk = plan.layers_per_chunk;
    split_number = layers_per_chunk.empty()
                       ? 0
                       : split_numbers.try_emplace(layers_per_chunk, std::ssize(split_numbers) + 1)
                             .first->second;
  }
  const std::int64_t v_placement = row_of(plan.schedule).places_in_v ? 1 : 0;
  grid_piece = &grid_pieces.find(
      {packed(plan.tp, plan.cp), packed(plan.ep, plan.etp), packed(plan.pp, plan.dp),
       packed(plan.dp_replicate, 2 * order_number(plan) + v_placement)},
      [&](GridPiece& piece) { build_grid(plan, piece); });
  split_piece = &split_pieces.find({packed(plan.pp, plan.vpp), 2 * split_number + v_placement},
                                   [&](SplitPiece& piece) { build_split(plan, piece); });
  recompute = recompute_number(plan.recompute);
  const BlockKey axes = block_key(plan);
  const PieceKey<2> groups_of = layout_key(plan);
  const PieceKey<3> stages = {packed(split_piece->number, number(plan.schedule)), groups_of[0],
                              groups_of[1]};
  if (!is_same(axes, block_axes) || !is_same(stages, stage_axes)) {
    block_axes = axes;
    stage_axes = stages;
    ++microbatch_number;
  }
}

// What the layout of chunks knows of recomputation.
PieceKey<2> PricePieces::layout_key(const Plan& plan) const {
  const bool full = plan.recompute.granularity == RecomputeGranularity::kFull;
  return {full ? packed(1 + number(plan.recompute.method), plan.recompute.num_layers) : 0,
          plan.recompute.policy.empty() ? 0 : recompute};
}

void PricePieces::build_split(const Plan& plan, SplitPiece& piece) {
  Plan plain = plan;
  plain.recompute = {};
  std::vector<StageLayout> classes;
  piece = {};
  piece.partition = partition_layers(job, plain);
  for (std::int64_t rank = 0; rank < plan.pp; ++rank) {
    StageLayout stage = stage_layout(job, plain, piece.partition, rank);
    const auto same = std::ranges::find_if(
        classes, [&](const StageLayout& other) { return is_same_class(stage, other, plan.pp); });
    piece.of_rank.push_back(same - classes.begin());
    if (same == classes.end()) {
      piece.firsts.push_back(rank);
      piece.ends.push_back(stage.ends);
      classes.push_back(std::move(stage));
    }
  }
  piece.steps = step_layout(job, plain, layer_kinds);
}

std::int64_t microbatch_axes_number(const Plan& plan, CpMethod cp_method, Schedule schedule) {
  const std::int64_t kinds =
      ((number(cp_method) * 2 + (plan.sequence_parallel ? 1 : 0)) * 4 + number(plan.precision)) *
          2 +
      (row_of(schedule).splits_backward ? 1 : 0);
  return packed(plan.micro_batch, kNumBlockKinds * kinds);
}

// Axes of the rows of blocks. `is_wide` profiles see their sharding, and more, as well, but not the
// order of ranks, which moves no byte; buckets of units the ranks that share the state, and what
// else their stage has.
BlockKey PricePieces::block_key(const Plan& plan) {
  BlockKey key{packed(plan.tp, plan.cp),
               packed(plan.ep, plan.etp),
               microbatch_axes_number(plan, plan.cp_method, plan.schedule),
               recompute,
               std::bit_cast<std::int64_t>(plan.moe_buffer_factor),
               0};
  if (gathers_by_unit(job, plan)) {
    key[5] = wide_axes
                 .find({packed(grid().dense_shard, grid().expert_shard),
                        packed(grid().dp, 16 * plan.zero + number(plan.grad_dtype)),
                        packed(plan.vpp, split_number), 0},
                       [](WideAxes&) {})
                 .number;
  } else if (is_wide) {
    key[5] = wide_axes
                 .find({packed(grid().dp, plan.dp_replicate), packed(plan.pp, plan.zero),
                        packed(dtypes_number(plan), number(plan.schedule)),
                        packed(plan.vpp, split_number)},
                       [](WideAxes&) {})
                 .number;
  }
  return key;
}

// Blocks that see the same of a plan are built once.
const KindPiece& PricePieces::kind(const Plan& plan, BlockKind kind) {
  const SeenByBlock seen = seen_by_block(job, plan, kind);
  const CpMethod cp_method = seen.cp_method ? plan.cp_method : CpMethod::kRing;
  return kind_pieces
      .find({block_axes[0], seen.experts ? packed(seen.ep, plan.etp) : 0,
             microbatch_axes_number(plan, cp_method, plan.schedule) + number(kind),
             recompute_number(seen.recompute), seen.experts ? block_axes[4] : 0,
             is_wide || kind == BlockKind::kHead || kind == BlockKind::kMtp ? block_axes[5]
                                                                            : seen.gradients},
            [&](KindPiece& piece) {
              const BlockMemory block = block_memory(job, plan, kind);
              BlockSummaries alone{};
              alone[static_cast<std::size_t>(kind)] = block.summary;
              piece.summary = block.summary;
              piece.unit = unit_bytes(unit_peaks({.blocks = {{.kind = kind}}}, alone));
            })
      .value;
}

const BlockMemo::Piece& PricePieces::block(const Plan& plan) {
  return block_pieces.find(block_axes, [&](BlockPiece& piece) {
    for (std::size_t i = 0; i < block_kinds.size(); ++i) {
      piece.units[i] = kind(plan, block_kinds[i]).unit;
    }
  });
}

BlockSummaries PricePieces::summaries(const Plan& plan) {
  BlockSummaries all{};
  for (const BlockKind each : block_kinds) {
    all[static_cast<std::size_t>(each)] = kind(plan, each).summary;
  }
  return all;
}

}  // namespace shardplan
