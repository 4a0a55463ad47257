// A run of DeepSpeed: its configuration.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

RunReading read_deepspeed_run(const RunSettings& settings, const ClusterSpec& cluster,
                              const Library& library);

}  // namespace shardplan
