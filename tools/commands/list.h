// shardplan list: what the program knows by name.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_list(const Arguments& arguments);

}  // namespace shardplan
