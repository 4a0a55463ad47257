// How long a pipeline takes, in closed form: what the walk over all ranks gives, without walking.
#pragma once

#include <cstdint>
#include <span>

#include "estimator/schedule_walk.h"

namespace shardplan {

struct PipelineTime {
  double total_s = 0;
  std::int64_t critical_rank = 0;  // the rank whose work plus waiting is the total
};

// chunks: pp * vpp entries in model order. Exact when all chunks take the same time, for every
// schedule; exact for GPipe with any times; for other uneven pipelines an estimate whose error the
// tests bound. Constant work in the number of microbatches.
PipelineTime pipeline_time(const ScheduleShape& shape, std::span<const ChunkTime> chunks);

}  // namespace shardplan
