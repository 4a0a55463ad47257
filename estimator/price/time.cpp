// The pieces of a price's time: kinds of layers, the pipeline, and what follows it.
#include <algorithm>
#include <bit>

#include "estimator/frameworks/framework.h"
#include "estimator/price/pieces.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {
namespace {

template <class Enum>
std::int64_t number(Enum value) {
  return static_cast<std::int64_t>(value);
}

// Layers of full recomputation where their number says what is replayed: by blocks, and by groups
// whose replay leaves something out.
std::int64_t layers_seen_by_time(const Job& job, const Recompute& recompute) {
  if (recompute.granularity != RecomputeGranularity::kFull) {
    return 0;
  }
  if (recompute.method == RecomputeMethod::kBlock) {
    return 2 * recompute.num_layers;
  }
  const bool leaves_out = framework_of(job.profile).last_replayed != kLastForward;
  return leaves_out ? 2 * recompute.num_layers + 1 : 0;
}

std::int64_t microbatches_seen_by_time(const Job& job, const Plan& plan) {
  const auto seen = framework_of(job.profile).microbatches_seen_by_time;
  return seen != nullptr ? seen(job, plan) : 0;
}

}  // namespace

std::int64_t PricePieces::shardings(const Plan& plan) const {
  const auto seen = framework_of(job.profile).sharding_seen_by_time;
  return seen != nullptr ? seen(job, plan, grid().dp) : 0;
}

const PieceMemo<ModelTimes, 7>::Piece& PricePieces::times(const Plan& plan) {
  const std::int64_t kinds = ((number(plan.cp_method) * 2 + (plan.sequence_parallel ? 1 : 0)) * 4 +
                              number(plan.precision)) *
                                 16 +
                             number(plan.grad_dtype);
  return times_pieces.find(
      {packed(plan.tp, plan.cp), packed(plan.ep, plan.etp), packed(plan.micro_batch, kinds),
       grid().links, std::bit_cast<std::int64_t>(plan.moe_buffer_factor), shardings(plan),
       microbatches_seen_by_time(job, plan)},
      [&](ModelTimes& piece) {
        piece = times_without_recompute(framework_of(job.profile).kernels, job, plan, layer_kinds,
                                        &products);
      });
}

const PieceMemo<ChunkWorkPiece, 3>::Piece& PricePieces::chunk_work(
    const Plan& plan, const PieceMemo<ModelTimes, 7>::Piece& known) {
  return chunk_work_pieces.find(
      {known.number, split_piece->number, grid().pp_links}, [&](ChunkWorkPiece& piece) {
        const StepLayout& layout = split().steps;
        work_space.resize(layout.chunks.size());
        rank_work_space.resize(layout.pipeline.rank_chunks.size());
        chunk_works(job, layout, known.value, exposed_sends(job, plan, grid().pp), work_space);
        rank_works(layout, work_space, rank_work_space);
        piece.chunks.clear();
        for (const ChunkWork& work : work_space) { piece.chunks.push_back(work.plain_time()); }
        piece.ranks.clear();
        piece.busiest_s = 0;
        for (const ChunkWork& work : rank_work_space) {
          piece.ranks.push_back(added_up(work));
          piece.busiest_s = std::max(piece.busiest_s, piece.ranks.back().compute_s);
        }
      });
}

// Adds recomputation to what is known without it.
void PricePieces::build_work(const Plan& plan, const ScheduleShape& shape,
                             const PieceMemo<ModelTimes, 7>::Piece& known,
                             const ChunkWorkPiece& plain, WorkPiece& piece) {
  if (model_time_number != known.number) {
    model_time_space = known.value;
    model_time_number = known.number;
  }
  add_recompute(framework_of(job.profile).kernels, plan.recompute, model_time_space);
  const StepLayout& layout = split().steps;
  chunk_time_space.resize(plain.chunks.size());
  replay_space.resize(plain.chunks.size());
  for (std::size_t at = 0; at < plain.chunks.size(); ++at) {
    replay_space[at] = chunk_replay(job, plan.recompute, layout.chunks[at], model_time_space);
    chunk_time_space[at] = plain.chunks[at].with(replay_space[at]);
  }
  rank_replay_space.resize(plain.ranks.size());
  rank_replays(layout, replay_space, rank_replay_space);
  const PipelineTime pipeline = pipeline_time(shape, layout.pipeline, chunk_time_space);
  piece.step = pipeline_step(shape, layout.pipeline, plain.ranks, rank_replay_space, pipeline);
  piece.pipeline_s = pipeline.total_s;
  piece.busiest_s = plain.busiest_s;
}

const WorkPiece& PricePieces::work(const Plan& plan, const ScheduleShape& shape) {
  const PieceKey<6> key = {microbatch_number, shape.num_microbatches,  grid().links,
                           grid().pp_links,   number(plan.grad_dtype), shardings(plan)};
  if (last_work != nullptr && is_same(key, last_work_key)) {
    return *last_work;
  }
  last_work = nullptr;
  const auto& known = times(plan);
  const auto& plain = chunk_work(plan, known);
  last_work =
      &work_pieces
           .find({plain.number, recompute, shape.num_microbatches,
                  packed(number(plan.schedule), layers_seen_by_time(job, plan.recompute))},
                 [&](WorkPiece& piece) { build_work(plan, shape, known, plain.value, piece); })
           .value;
  last_work_key = key;
  return *last_work;
}

const std::vector<RankParameters>& PricePieces::parameters(const Plan& plan) {
  return parameter_pieces
      .find({split_piece->number, packed(plan.tp, plan.ep), plan.etp},
            [&](std::vector<RankParameters>& piece) {
              piece = rank_parameters(job, split().steps, times(plan).value);
            })
      .value;
}

const PieceMemo<ReductionPiece, 3>::Piece& PricePieces::reductions(const Plan& plan) {
  // Under frameworks that see ZeRO per microbatch: none, 1 and 2, or 3, which gathers all weights.
  const std::int64_t sharding = shardings(plan) == 0 ? 0 : plan.zero < 3 ? 1 : 2;
  return reduction_pieces.find(
      {split_piece->number, grid_piece->number,
       packed(4 * number(plan.precision) + sharding, number(plan.grad_dtype))},
      [&](ReductionPiece& piece) {
        const UpdateTimes& update = framework_of(job.profile).update;
        piece.ranks.clear();
        piece.held.clear();
        for (const RankParameters& rank : parameters(plan)) {
          piece.ranks.push_back(rank_update(job, plan, update, grid().groups, rank));
          piece.held.push_back(rank);
        }
      });
}

// ZeRO decides as well what of the reductions it takes.
const std::vector<RankUpdate>& PricePieces::updates(const Plan& plan) {
  return update_pieces
      .find({packed(split_piece->number, grid_piece->number),
             packed(dtypes_number(plan), 4 * plan.zero + (plan.offload.activations ? 2 : 0) +
                                             (plan.offload.parameters ? 1 : 0)),
             std::bit_cast<std::int64_t>(plan.offload.optimizer)},
            [&](std::vector<RankUpdate>& piece) {
              const UpdateTimes& update = framework_of(job.profile).update;
              const ReductionPiece& known = reductions(plan).value;
              piece = known.ranks;
              for (std::size_t rank = 0; rank < piece.size(); ++rank) {
                piece[rank].optimizer_s =
                    optimizer_s(job, plan, update, grid().groups, known.held[rank]);
              }
            })
      .value;
}

}  // namespace shardplan
