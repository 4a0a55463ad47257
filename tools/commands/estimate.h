// shardplan estimate: the memory and time of one plan.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_estimate(const Arguments& arguments);

}  // namespace shardplan
