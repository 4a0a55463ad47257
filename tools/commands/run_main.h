// What the mains of the programs share.
#pragma once

#include "tools/commands/command.h"

namespace shardplan {

// Runs what the command line asks and turns mistakes into a line and an exit code; the only place
// that catches (besides a line of batch, accuracy or validate).
int run_main(int argc, char** argv, ExitCode (*run)(Arguments arguments));

}  // namespace shardplan
