#include "estimator/answer/step_time.h"

#include <vector>

#include "estimator/answer/model_times.h"
#include "estimator/answer/pipeline_step.h"
#include "estimator/frameworks/framework.h"
#include "estimator/time/model_flops.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {
namespace {

// Products of fp32 that are rounded to TF32 have half the peak of bf16's (kernel_time.h,
// tf32_gemm_s).
void measure_against_peak(const Job& job, const Plan& plan, StepTime& step) {
  const auto tf32 = framework_of(job.profile).kernels.rounds_to_tf32;
  const bool rounds = plan.precision == Precision::kFp32 && tf32 != nullptr && tf32(job);
  step.mfu_peak = rounds ? "tf32" : name_of(plan.precision);
  step.peak_flops_per_s = rounds ? job.cluster.gpu.bf16_flops_per_s / 2
                                 : peak_flops_per_s(job.cluster.gpu, plan.precision);
  step.mfu = step.model_flops_per_token * step.tokens_per_s_per_gpu / step.peak_flops_per_s;
}

}  // namespace

StepTime estimate_step_time(const Job& job, const Plan& plan) {
  const ModelTimes times = model_times(job, plan);
  const StepLayout layout = step_layout(job, plan, layer_kinds(job.model));
  const ScheduleShape shape = schedule_shape(job, plan);
  std::vector<ChunkWork> works(layout.chunks.size());
  chunk_works(job, layout, times, exposed_sends(job, plan, group_shape(job, plan, GroupKind::kPp)),
              works);
  std::vector<ReplaySeconds> replays;
  std::vector<ChunkTime> chunk_times;
  for (std::size_t chunk = 0; chunk < works.size(); ++chunk) {
    replays.push_back(chunk_replay(job, plan.recompute, layout.chunks[chunk], times));
    chunk_times.push_back(works[chunk].plain_time().with(replays.back()));
  }
  std::vector<ChunkWork> of_ranks(layout.pipeline.rank_chunks.size());
  std::vector<ReplaySeconds> replays_of_ranks(of_ranks.size());
  rank_works(layout, works, of_ranks);
  rank_replays(layout, replays, replays_of_ranks);
  std::vector<RankWork> sums;
  sums.reserve(of_ranks.size());
  for (const ChunkWork& rank : of_ranks) { sums.push_back(added_up(rank)); }
  const ShardingGroups groups(job, plan);
  const UpdateTimes& update = framework_of(job.profile).update;
  std::vector<RankUpdate> updates;
  for (const RankParameters& rank : rank_parameters(job, layout, times)) {
    updates.push_back(rank_update(job, plan, update, groups, rank));
  }
  const PipelineTime pipeline = pipeline_time(shape, layout.pipeline, chunk_times);
  StepTime step = step_time_of(
      job, plan, shape.num_microbatches,
      pipeline_step(shape, layout.pipeline, sums, replays_of_ranks, pipeline), updates);
  step.model_flops_per_token = model_flops_per_token(job);
  measure_against_peak(job, plan, step);
  step.calibrated = is_calibrated(job.cluster.gpu);
  return step;
}

}  // namespace shardplan
