// A user's own launch script with other arguments of Megatron-LM in it.
#pragma once

#include <string>
#include <vector>

#include "tools/export/export_request.h"

namespace shardplan {

// What has to become of one argument.
struct ArgumentChange {
  std::string name;
  std::vector<std::string> values = {};
  bool is_removed = false;
};

// From the arguments of the run as it is to those of the plan.
std::vector<ArgumentChange> changes_between(const std::vector<ExportedArgument>& before,
                                            const std::vector<ExportedArgument>& after);

// Where the script says an argument, its value there becomes the new one: the word itself, or what
// the variable that stands there is set to. An argument that it does not say stands behind the
// first that it does. Whether the script then says so is seen when it is read.
std::string edited_script(std::string text, const std::vector<ArgumentChange>& changes);

}  // namespace shardplan
