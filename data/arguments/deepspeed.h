// A run of DeepSpeed: its configuration.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

RunReading read_deepspeed_run(const RunSettings& settings, const ClusterSpec& cluster,
                              const Library& library);
// The settings of a run of DeepSpeed: the trainer's stand behind DeepSpeed's.
bool says_sequence_length(const RunSettings& settings);

}  // namespace shardplan
