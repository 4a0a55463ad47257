// The pieces of a price's time: kinds of layers, the pipeline, and what follows it.
#include <algorithm>
#include <bit>

#include "estimator/price_pieces.h"

namespace shardplan {
namespace {

template <class Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

// Layers of every chunk that full recomputation by blocks replays; 0: another choice.
std::int64_t replayed_block(const Recompute& recompute) {
  const bool by_blocks = recompute.granularity == RecomputeGranularity::kFull &&
                         recompute.method == RecomputeMethod::kBlock;
  return by_blocks ? recompute.num_layers : 0;
}

}  // namespace

const PieceMemo<ModelTimes, 5>::Piece& PricePieces::times(const Plan& plan) {
  const std::int64_t kinds = ((number(plan.cp_method) * 2 + (plan.sequence_parallel ? 1 : 0)) * 4 +
                              number(plan.precision)) *
                                 16 +
                             number(plan.grad_dtype);
  return times_pieces.find(
      {packed(plan.tp, plan.cp), packed(plan.ep, plan.etp), packed(plan.micro_batch, kinds),
       grid().links, std::bit_cast<std::int64_t>(plan.moe_buffer_factor)},
      [&](ModelTimes& piece) { piece = times_without_recompute(job, plan, layer_kinds); });
}

const PieceMemo<StepLayout, 2>::Piece& PricePieces::steps_piece(const Plan& plan) {
  return step_pieces.find({split(plan).number, replayed_block(plan.recompute)},
                          [&](StepLayout& piece) { piece = step_layout(job, plan, layer_kinds); });
}

const StepLayout& PricePieces::steps(const Plan& plan) {
  return steps_piece(plan).value;
}

const WorkPiece& PricePieces::work(const Plan& plan, const ScheduleShape& shape) {
  const GridPiece& ranks = grid();
  const auto& layout = steps_piece(plan);
  return work_pieces
      .find({packed(times(plan).number, layout.number), recompute, ranks.pp_links,
             packed(shape.num_microbatches, number(plan.schedule)), shape.pp},
            [&](WorkPiece& piece) {
              model_time_space = times(plan).value;
              add_recompute(plan.recompute, model_time_space);
              chunk_work_space.resize(layout.value.chunks.size());
              chunk_time_space.resize(layout.value.chunks.size());
              chunk_works(job, layout.value, model_time_space, exposed_send_s(job, plan, ranks.pp),
                          chunk_work_space, chunk_time_space);
              piece.ranks.resize(layout.value.pipeline.rank_chunks.size());
              rank_works(layout.value, chunk_work_space, piece.ranks);
              piece.pipeline = pipeline_time(shape, layout.value.pipeline, chunk_time_space);
            })
      .value;
}

const std::vector<RankParameters>& PricePieces::parameters(const Plan& plan) {
  return parameter_pieces
      .find({split(plan).number, packed(plan.tp, plan.ep), plan.etp},
            [&](std::vector<RankParameters>& piece) {
              piece = rank_parameters(job, split(plan).value.steps, times(plan).value);
            })
      .value;
}

const ReductionPiece& PricePieces::reductions(const Plan& plan) {
  return reduction_pieces
      .find({split(plan).number, grid_piece->number,
             packed(number(plan.precision), number(plan.grad_dtype))},
            [&](ReductionPiece& piece) {
              piece.ranks.clear();
              piece.held.clear();
              for (const RankParameters& rank : parameters(plan)) {
                piece.ranks.push_back(
                    rank_update(job, plan, grid().groups, rank.held, rank.tied_elements));
                piece.held.push_back(rank.held);
              }
            })
      .value;
}

std::span<const RankUpdate> PricePieces::updates(const Plan& plan) {
  const ReductionPiece& piece = reductions(plan);
  update_space = piece.ranks;
  for (std::size_t rank = 0; rank < update_space.size(); ++rank) {
    update_space[rank].optimizer_s = optimizer_s(job, plan, grid().groups, piece.held[rank]);
  }
  return update_space;
}

}  // namespace shardplan
