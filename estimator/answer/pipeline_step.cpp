#include "estimator/answer/pipeline_step.h"

#include <algorithm>

#include "estimator/frameworks/framework.h"
#include "estimator/plan/number.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {
namespace {

struct AfterPipeline {
  double data_parallel_s = 0;
  double optimizer_s = 0;
  double total_s() const { return data_parallel_s + optimizer_s; }
};

AfterPipeline slowest_after_pipeline(const Job& job, const Plan& plan,
                                     std::int64_t num_microbatches, const PipelineStep& pipeline,
                                     std::span<const RankUpdate> updates) {
  const UpdateTimes& times = framework_of(job.profile).update;
  const bool behind_longest = hides_behind_longest(times, job.profile, plan);
  AfterPipeline slowest;
  for (std::size_t i = 0; i < pipeline.num_ranks; ++i) {
    const DecidingRank& rank = pipeline.ranks[i];
    const RankUpdate& update = updates[rank.kind];
    const MicrobatchWork& work = behind_longest ? pipeline.longest : rank.work;
    const AfterPipeline after = {.data_parallel_s = exposed_data_parallel_s(
                                     job, plan, times, update, num_microbatches, work),
                                 .optimizer_s = update.optimizer_s};
    slowest = after.total_s() > slowest.total_s() ? after : slowest;
  }
  return slowest;
}

}  // namespace

RankWork added_up(const ChunkWork& work) {
  const BlockTime& blocks = work.blocks;
  return {.time = work.plain_time(),
          .compute_s = blocks.forward_s + blocks.backward_input_s + blocks.backward_weight_s,
          .exposed_tp_s = blocks.forward_tp_s + blocks.backward_tp_s,
          .exposed_cp_s = blocks.forward_cp_s + blocks.backward_cp_s,
          .exposed_ep_s = blocks.forward_ep_s + blocks.backward_ep_s,
          .sends_s = work.forward_send_s + work.backward_send_s,
          .host_s = blocks.host_s()};
}

MicrobatchWork microbatch_work(const RankWork& work, const ReplaySeconds& replay) {
  const ChunkTime time = work.time.with(replay);
  return {.forward_s = time.forward_s,
          .backward_s = time.backward_input_s + time.backward_weight_s,
          .host_s = work.host_s + replay.host_s};
}

MicrobatchWork longest_work(std::span<const RankWork> works,
                            std::span<const ReplaySeconds> replays) {
  MicrobatchWork longest;
  for (std::size_t kind = 0; kind < works.size(); ++kind) {
    const MicrobatchWork work = microbatch_work(works[kind], replays[kind]);
    longest = work.total_s() > longest.total_s() ? work : longest;
  }
  return longest;
}

bool hides_behind_longest(const UpdateTimes& update, const FrameworkProfile& profile,
                          const Plan& plan) {
  return plan.zero >= 2 && (update.gathers_once == nullptr || !update.gathers_once(profile, plan));
}

PipelineStep pipeline_step(const ScheduleShape& shape, const PipelineLayout& ranks,
                           std::span<const RankWork> works, std::span<const ReplaySeconds> replays,
                           const PipelineTime& pipeline) {
  PipelineStep step;
  step.longest = longest_work(works, replays);
  const std::size_t critical = ranks.rank_kind(pipeline.critical_rank);
  const std::size_t first = ranks.runs.front().kind;
  const std::size_t last = ranks.runs.back().kind;
  const auto add_rank = [&](std::size_t kind) {
    step.ranks[step.num_ranks++] = {.work = microbatch_work(works[kind], replays[kind]),
                                    .kind = kind};
  };
  add_rank(first);
  if (critical != first && critical != last) {
    add_rank(critical);
  }
  if (last != first) {
    add_rank(last);
  }
  const RankWork& work = works[critical];
  const ReplaySeconds& replay = replays[critical];
  const double m = number(shape.num_microbatches);
  StepTime& parts = step.parts;
  parts.compute_s = m * work.compute_s;
  parts.recompute_s = m * replay.recompute_s;
  parts.exposed_tp_s = m * work.exposed_tp_s;
  parts.exposed_cp_s = m * work.exposed_cp_s;
  parts.exposed_ep_s = m * work.exposed_ep_s;
  parts.exposed_pp_s = m * work.sends_s;
  parts.bubble_s = std::max(0.0, pipeline.total_s - m * work.time.with(replay).total_s());
  parts.host_s = m * (work.host_s + replay.host_s);
  return step;
}

StepTime step_time_of(const Job& job, const Plan& plan, std::int64_t num_microbatches,
                      const PipelineStep& pipeline, std::span<const RankUpdate> updates) {
  const AfterPipeline after =
      slowest_after_pipeline(job, plan, num_microbatches, pipeline, updates);
  StepTime step = pipeline.parts;
  step.exposed_dp_s = after.data_parallel_s;
  step.optimizer_s = after.optimizer_s;
  step.total_s = step.compute_s + step.recompute_s + step.exposed_tp_s + step.exposed_cp_s +
                 step.exposed_ep_s + step.exposed_pp_s + step.exposed_dp_s + step.bubble_s +
                 step.optimizer_s + step.host_s;
  step.tokens_per_s_per_gpu = number(job.global_batch) * number(job.sequence_length) /
                              step.total_s / number(job.cluster.world_size());
  return step;
}

}  // namespace shardplan
