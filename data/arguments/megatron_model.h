// The model that Megatron-LM arguments describe.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/arguments.h"
#include "estimator/plan/model_spec.h"

namespace shardplan {

// Values that nothing states and that are taken stand in `notes`.
ModelSpec megatron_model(const RunArguments& arguments, std::vector<std::string>& notes);
// "unsupported: ..." for the first setting that is refused whatever the others are, else "".
std::string why_refused(const RunArguments& arguments);

}  // namespace shardplan
