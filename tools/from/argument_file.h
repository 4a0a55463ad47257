// A script that starts no training but sets a variable to the arguments of one, which another
// script starts.
#pragma once

#include <string>

#include "tools/from/shell/words.h"

namespace shardplan {

// The variable that holds --num-layers, or "".
std::string variable_with_arguments(const ShellScript& script);

// "run.sh:12": where the argument stands last in the script's text; "run.sh" where it does not.
std::string place_of_argument(const std::string& argument, const std::string& text,
                              const std::string& file);

}  // namespace shardplan
