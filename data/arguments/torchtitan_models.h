// The model that a torchtitan configuration names.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"

namespace shardplan {

// Of model.name and model.flavor; a note where torchtitan's default is taken. InputError for one
// that torchtitan v0.2.2 does not have.
ModelSpec torchtitan_model_of(const RunArguments& arguments, const Library& library,
                              std::vector<std::string>& notes);

}  // namespace shardplan
