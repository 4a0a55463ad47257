// shardplan-validate: the commands that run plans.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

// Case lines in, result lines out. Exit codes as the table of README.
ExitCode run_validation(const Arguments& arguments);

}  // namespace shardplan
