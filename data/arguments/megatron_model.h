// The model that Megatron-LM arguments describe.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "estimator/plan/model_spec.h"

namespace shardplan {

// Values that nothing states and that are taken stand in `notes`.
ModelSpec megatron_model(const RunArguments& arguments, std::vector<std::string>& notes);
// "unsupported: ..." for the first setting that is refused whatever the others are, else "".
std::string why_refused(const RunArguments& arguments);

// Tokens of a sequence; of a run that names its model and no length, the model's positions. Called
// behind what reads the model; InputError where nothing says it.
std::int64_t read_megatron_length(const RunArguments& arguments, bool names_model, RunReading& run);

}  // namespace shardplan
