// A tower for pictures beside the text model of Megatron-SWIFT.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

// Called behind take_profile.
void read_megatron_tower(const RunArguments& arguments, RunReading& run);

}  // namespace shardplan
