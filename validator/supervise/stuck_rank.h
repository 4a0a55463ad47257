// Which rank holds up a run that stands still.
#pragma once

#include <functional>
#include <vector>

#include "validator/program/program.h"
#include "validator/supervise/worker_link.h"

namespace shardplan {

using ProgramOf = std::function<Program(std::int64_t rank)>;

// `positions` by rank. A rank that waits in a collective, send or receive is held up by a member of
// the group that has not come to it yet; following that from rank to rank leads to one that waits
// for nobody, or round a circle, of which one is named. A stopped rank is named at once, and ranks
// that have not come as far as steps before those that have.
std::int64_t stuck_rank(const std::vector<Position>& positions, const ProgramOf& program_of);

}  // namespace shardplan
