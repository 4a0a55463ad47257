// Which operations to launch once before the first step, so that steps load no kernels. One that is
// loaded waits for what its GPU does (CUDA Programming Guide, "Lazy Loading", concurrent
// execution), which in a step may wait for another rank, whose thread waits for this one; and
// modules take memory.
#pragma once

#include <cstdint>
#include <vector>

#include "validator/program/program.h"

namespace shardplan {

// One operation of every kind and shape, and of whatever else tells its kernels apart; without
// communication. In the program's order.
std::vector<std::int64_t> first_launches(const Program& program);

}  // namespace shardplan
