// The commands that a shell script runs.
#pragma once

#include <string>

#include "tools/from/shell/words.h"

namespace shardplan {

// Throws InputError that names the line for what is no script, and for one that grows without end.
ShellScript read_shell(const std::string& text, const std::string& file,
                       const ShellGiven& given = {});

}  // namespace shardplan
