// Programs that sum over tensor parallelism in another way.
#pragma once

#include "validator/program.h"

namespace shardplan {

// The same program with an exchange and a sum of its parts in the place of every reduce-scatter of
// one input over a group of tensor parallelism. What is exchanged lies behind all else in the
// dynamic arena.
Program with_exchanged_sums(const Program& program);

}  // namespace shardplan
