// Which linear layers of the model have adapters, as the settings of a trainer name them.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/trainer_projects.h"

namespace shardplan {

// "[q_proj, 'v_proj']", "q_proj,v_proj" or "q_proj v_proj".
std::vector<std::string> names_in(const std::string& text);

// Fits `setting`, null where nothing is set, to the modules of the run's model.
void read_named_targets(const RunArguments& arguments, const char* setting, RunReading& run);

}  // namespace shardplan
