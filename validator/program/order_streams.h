// Events between the streams of a rank.
#pragma once

#include "validator/program/program.h"

namespace shardplan {

// Writes the events that order the streams: every operation waits for the operations of other
// streams whose bytes it reads or overwrites, or that read what it overwrites, unless it is behind
// them already.
void order_streams(Program& program);

}  // namespace shardplan
