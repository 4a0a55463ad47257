// Prefetch of the data stream.
#pragma once

#include "validator/program/program.h"

namespace shardplan {

// Gathers of the data stream start as soon as their memory is free: they move up behind the last
// operation that uses the bytes they write or read, or behind the gather before them.
void start_gathers_early(Program& program);

}  // namespace shardplan
