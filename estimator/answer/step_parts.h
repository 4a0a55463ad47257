// What the time of a step is composed from, kept for reports: the blocks of every chunk, the stages
// and what they do after the pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimator/answer/pipeline_step.h"
#include "estimator/time/timed_pieces.h"

namespace shardplan {

// `count` equal blocks of a chunk, one after the other in forward; backward runs the other way.
// Their recomputation is that of the blocks that the plan replays.
struct TimedBlocks {
  std::string name = {};  // "expert layer", "embedding"
  std::int64_t count = 0;
  std::int64_t replayed = 0;                        // of the count
  const BlockTime* time = nullptr;                  // of one block; all point into StepParts
  const std::vector<TimedPiece>* pieces = nullptr;  // of one block, without recomputation
};

// What a stage does when its last microbatch is through.
struct StageUpdate {
  double data_parallel_s = 0;         // gradients and parameters, what stays visible
  double data_parallel_hidden_s = 0;  // behind all microbatches
  double optimizer_s = 0;

  double total_s() const { return data_parallel_s + optimizer_s; }
};

class StepParts {
 public:
  StepParts(const Job& job, const Plan& plan);  // both must outlive this

  const Job& job;
  const Plan& plan;
  ScheduleShape shape;
  StepLayout layout;
  ModelTimes times;
  ModelPieces pieces;
  std::vector<ChunkWork> works;        // by kind of chunk
  std::vector<ChunkTime> chunk_times;  // by kind of chunk
  PipelineTime pipeline;               // in closed form
  StepTime step;                       // estimate_step_time

  // In forward order: embedding, layers by kind, head, prediction modules.
  std::vector<TimedBlocks> blocks_of(const ChunkKind& chunk) const;
  StageUpdate after_pipeline(std::int64_t pp_rank) const;

 private:
  std::vector<RankUpdate> updates_;  // by kind of rank
  std::vector<RankWork> of_ranks_;
  std::vector<ReplaySeconds> replays_of_ranks_;
};

}  // namespace shardplan
