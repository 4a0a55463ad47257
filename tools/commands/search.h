// shardplan search: every plan of a cluster, the fastest that fit first.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

ExitCode run_search(const Arguments& arguments);

}  // namespace shardplan
