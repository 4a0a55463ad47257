// Commands that run plans: handed to the program shardplan-validate, beside this one or on PATH.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_validate(const Arguments& arguments);   // handed to shardplan-validate
ExitCode run_calibrate(const Arguments& arguments);  // handed to shardplan-validate

}  // namespace shardplan
