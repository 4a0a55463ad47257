// Pipeline stages in torchtitan's arguments.
#pragma once

#include <cstdint>

#include "tools/export/export_request.h"

namespace shardplan {

// For how many layers embedding and head stand, and how many of all these a stage has: what
// torchtitan v0.2.2 divides layers by (torchtitan/distributed/pipeline_parallel.py).
struct StageWeights {
  std::int64_t embedding = 1;
  std::int64_t head = 1;
  std::int64_t layers_per_stage = 0;
};

// InputError where no weights give the chunks of the plan.
StageWeights stage_weights(const ExportRequest& request);

}  // namespace shardplan
