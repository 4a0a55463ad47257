// A user's own configuration of torchtitan with other keys in it.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// From the sections of the run as it is to those of the plan: keys whose value differs get it where
// they stand, others are added to their section, or with it.
std::string edited_configuration(std::string text, const std::vector<ArgumentGroup>& before,
                                 const std::vector<ArgumentGroup>& after);

}  // namespace shardplan
