// shardplan batch: case lines in, one answer per line out, in input order.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_batch(const Arguments& arguments);

}  // namespace shardplan
