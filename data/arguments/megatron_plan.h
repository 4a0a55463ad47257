// The plan that Megatron-LM arguments describe.
#pragma once

#include <string>

#include "data/arguments/run_settings.h"

namespace shardplan {

// --fp8-recipe, which Megatron-LM has a default of with and without --fp8-format.
std::string fp8_recipe(const RunArguments& arguments);

// Sizes, schedule, recompute and types; with `unsupported` set where nothing describes them.
void read_megatron_plan(const RunArguments& arguments, RunReading& run);

}  // namespace shardplan
