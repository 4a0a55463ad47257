// How long a pipeline takes, in closed form: what the walk over all ranks gives, without walking.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "estimator/time/schedule_walk.h"

namespace shardplan {

struct PipelineTime {
  double total_s = 0;
  std::int64_t critical_rank = 0;  // the rank whose work plus waiting is the total
};

// A pipeline whose chunks are of few kinds. Ranks with the same number of chunks of every kind are
// of one kind, and neighbours of one kind are a run.
struct RankRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::size_t kind = 0;
};
struct PipelineLayout {
  std::vector<std::size_t> chunk_kinds;                // by position in model order
  std::vector<std::int64_t> chunks;                    // of the pipeline, by chunk kind
  std::vector<std::vector<std::int64_t>> rank_chunks;  // by rank kind, then by chunk kind
  std::vector<RankRun> runs;                           // in the order of the ranks

  std::size_t rank_kind(std::int64_t pp_rank) const;
};
PipelineLayout pipeline_layout(const ScheduleShape& shape, std::vector<std::size_t> chunk_kinds);

// Seconds by chunk kind. Exact when all chunks take the same time, for every schedule; exact for
// GPipe with any times; for other uneven pipelines an estimate whose error the tests bound.
// Constant work in the number of microbatches; but for the zero-bubble schedules in that of ranks
// as well.
PipelineTime pipeline_time(const ScheduleShape& shape, const PipelineLayout& layout,
                           std::span<const ChunkTime> kinds);

// The same for pp * vpp chunks in model order.
PipelineTime pipeline_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks);

}  // namespace shardplan
