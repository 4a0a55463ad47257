// Environment variables of a run that decide about memory.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

// The environment's part, for every framework.
void read_environment(const RunSettings& settings, const Library& library, RunReading& run);

}  // namespace shardplan
