// A question that lacks options: all of them at once, and a command that has them.
#pragma once

#include <string_view>

#include "data/read/input_error.h"
#include "tools/options/options.h"

namespace shardplan {

// What a job needs, and `name`, as far as they are not given.
InputError missing_options(const Options& options, std::string_view name);

}  // namespace shardplan
