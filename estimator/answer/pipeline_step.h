// What the pipeline takes of a step, and what the ranks do behind it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "estimator/answer/chunk_work.h"
#include "estimator/answer/step_time.h"

namespace shardplan {

// A rank's work added up as a step's parts need it, but for recomputation.
struct RankWork {
  PlainChunkTime time;
  double compute_s = 0;
  double exposed_tp_s = 0;
  double exposed_cp_s = 0;
  double exposed_ep_s = 0;
  double sends_s = 0;
  double host_s = 0;
};
RankWork added_up(const ChunkWork& work);
MicrobatchWork microbatch_work(const RankWork& work, const ReplaySeconds& replay);
// The work of the rank that takes longest.
MicrobatchWork longest_work(std::span<const RankWork> works,
                            std::span<const ReplaySeconds> replays);
// Whether communication may hide behind the work of the longest rank, not a rank's own: what ZeRO 2
// and 3 gather and reduce in every microbatch has so long on every rank, as all wait for the
// slowest; the others' communication follows a rank's own last microbatch.
bool hides_behind_longest(const UpdateTimes& update, const FrameworkProfile& profile,
                          const Plan& plan);

// A rank that may be the slowest after the pipeline: its work on one microbatch, which
// communication may hide behind, and its kind.
struct DecidingRank {
  MicrobatchWork work;
  std::size_t kind = 0;
};

// What the pipeline takes of a step, and the ranks that decide what follows: the stages step
// together, and the slowest of both ends of the model and the critical rank is waited for.
struct PipelineStep {
  StepTime parts;  // all but data parallelism and the optimizer
  std::array<DecidingRank, 3> ranks;
  std::size_t num_ranks = 0;
  MicrobatchWork longest;  // of all ranks
};

// `works` and `replays` by kind of rank.
PipelineStep pipeline_step(const ScheduleShape& shape, const PipelineLayout& ranks,
                           std::span<const RankWork> works, std::span<const ReplaySeconds> replays,
                           const PipelineTime& pipeline);

// Parts, total and speed of the whole step.
StepTime step_time_of(const Job& job, const Plan& plan, std::int64_t num_microbatches,
                      const PipelineStep& pipeline, std::span<const RankUpdate> updates);

}  // namespace shardplan
