// The signals that stop a batch of `validate`.
#pragma once

#include "validator/stop_flags.h"

namespace shardplan {

// From now on SIGINT, SIGTERM and SIGHUP set the flags, which live as long as the program: the
// first SIGINT lets the run finish, the second and the others end it; one more ends the program
// whatever it does.
StopFlags& watch_stop_signals();

}  // namespace shardplan
