// The order in which operations are launched.
#pragma once

#include "validator/program/program.h"

namespace shardplan {

// Where tensor parallelism goes by pieces of tokens: chooses the order of launches, so that the
// products of one piece run while another piece is on its way.
void order_launches(Program& program);

}  // namespace shardplan
