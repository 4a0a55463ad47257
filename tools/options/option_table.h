// The rows of the option table.
#pragma once

#include <vector>

#include "tools/options/options.h"

namespace shardplan {

// Every option of the program, in the order of help.
const std::vector<OptionRow>& option_table();

}  // namespace shardplan
