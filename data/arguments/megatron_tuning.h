// The adapters that arguments of Megatron-SWIFT describe.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

// Behind the model's; with `unsupported` set where nothing describes them.
void read_megatron_adapters(const RunArguments& arguments, RunReading& run);

}  // namespace shardplan
