// A run of transformers' Trainer without DeepSpeed -> Job and Plan.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

RunReading read_transformers_run(const RunSettings& settings, const ClusterSpec& cluster,
                                 const Library& library);

}  // namespace shardplan
