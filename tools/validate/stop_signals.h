// The signals that end a program.
#pragma once

#include "validator/supervise/stop_flags.h"

namespace shardplan {

// From now on SIGINT, SIGTERM and SIGHUP call `handler`; SIGHUP does not under nohup, which has it
// ignored.
void watch_end_signals(void (*handler)(int));

// For a batch of `validate`: from now on these signals set the flags, which live as long as the
// program: the first SIGINT lets the run finish, the second and the others end it; one more ends
// the program whatever it does.
StopFlags& watch_stop_signals();

}  // namespace shardplan
