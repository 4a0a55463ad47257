// `shardplan explain TERM`: what a word of the answers means, its formula, and its numbers for a
// job.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_explain(const Arguments& arguments);

}  // namespace shardplan
