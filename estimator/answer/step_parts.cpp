#include "estimator/answer/step_parts.h"

#include <algorithm>

#include "estimator/answer/model_times.h"
#include "estimator/answer/step_time.h"
#include "estimator/frameworks/framework.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {
namespace {

std::string name_of_layer(const LayerSpec& layer) {
  const std::string_view reach = layer.attention_window == 0 ? ""
                                 : layer.attends_in_chunks   ? "chunked "
                                                             : "window ";
  return std::string(reach) + (layer.is_moe ? "expert layer" : "dense layer");
}

}  // namespace

StepParts::StepParts(const Job& of_job, const Plan& of_plan)
    : job(of_job),
      plan(of_plan),
      shape(schedule_shape(job, plan)),
      layout(step_layout(job, plan, layer_kinds(job.model))),
      times(model_times(job, plan)),
      pieces(model_pieces(job, plan)),
      works(layout.chunks.size()),
      step(estimate_step_time(job, plan)),
      replays_of_ranks_(layout.pipeline.rank_chunks.size()) {
  chunk_works(job, layout, times, exposed_sends(job, plan, group_shape(job, plan, GroupKind::kPp)),
              works);
  std::vector<ReplaySeconds> replays;
  for (std::size_t chunk = 0; chunk < works.size(); ++chunk) {
    replays.push_back(chunk_replay(job, plan.recompute, layout.chunks[chunk], times));
    chunk_times.push_back(works[chunk].plain_time().with(replays.back()));
  }
  std::vector<ChunkWork> ranks(layout.pipeline.rank_chunks.size());
  rank_works(layout, works, ranks);
  rank_replays(layout, replays, replays_of_ranks_);
  for (const ChunkWork& rank : ranks) { of_ranks_.push_back(added_up(rank)); }
  pipeline = pipeline_time(shape, layout.pipeline, chunk_times);
  const ShardingGroups groups(job, plan);
  const UpdateTimes& update = framework_of(job.profile).update;
  for (const RankParameters& rank : rank_parameters(job, layout, times)) {
    updates_.push_back(rank_update(job, plan, update, groups, rank));
  }
}

std::vector<TimedBlocks> StepParts::blocks_of(const ChunkKind& chunk) const {
  std::vector<TimedBlocks> runs;
  if (chunk.is_first) {
    runs.push_back(
        {.name = "embedding", .count = 1, .time = &times.embedding, .pieces = &pieces.embedding});
  }
  for (std::size_t kind = 0; kind < times.layers.size(); ++kind) {
    const LayerTime& layer = times.layers[kind];
    const std::int64_t count = chunk.layers()[kind];
    if (count > 0) {
      runs.push_back(
          {.name = name_of_layer(job.model.layers[static_cast<std::size_t>(layer.layer_kind)]),
           .count = count,
           .replayed = chunk.replayed(plan.recompute)[kind],
           .time = &layer.time,
           .pieces = &pieces.layers[kind]});
    }
  }
  const auto add_end = [&](const char* name, const BlockTime& time,
                           const std::vector<TimedPiece>& of) {
    runs.push_back({.name = name, .count = 1, .time = &time, .pieces = &of});
  };
  if (chunk.has_head && chunk.has_loss) {
    add_end("head", times.head, pieces.head);
  } else if (chunk.has_head) {
    add_end("head", times.head_parts.logits, pieces.logits);
  }
  if (chunk.has_cast && !chunk.has_head) {
    add_end("cast", times.head_parts.cast, pieces.cast);
  }
  if (chunk.has_loss && !chunk.has_head) {
    add_end("loss", times.head_parts.loss, pieces.loss);
  }
  if (chunk.has_head && job.model.num_mtp_layers > 0) {
    runs.push_back({.name = "prediction module",
                    .count = job.model.num_mtp_layers,
                    .replayed = job.model.num_mtp_layers,
                    .time = &times.mtp,
                    .pieces = &pieces.mtp});
  }
  return runs;
}

StageUpdate StepParts::after_pipeline(std::int64_t pp_rank) const {
  const std::size_t kind = layout.pipeline.rank_kind(pp_rank);
  const UpdateTimes& update = framework_of(job.profile).update;
  const auto visible_s = [&](const MicrobatchWork& beside) {
    return exposed_data_parallel_s(job, plan, update, updates_[kind], shape.num_microbatches,
                                   beside);
  };
  const double exposed_s =
      visible_s(hides_behind_longest(update, job.profile, plan)
                    ? longest_work(of_ranks_, replays_of_ranks_)
                    : microbatch_work(of_ranks_[kind], replays_of_ranks_[kind]));
  return {.data_parallel_s = exposed_s,
          .data_parallel_hidden_s = std::max(0.0, visible_s({}) - exposed_s),
          .optimizer_s = updates_[kind].optimizer_s};
}

}  // namespace shardplan
