// Checks of all ranks together: groups, the order of collectives, matching messages, deadlock.
#pragma once

#include <vector>

#include "validator/check/problems.h"
#include "validator/program/program.h"

namespace shardplan {

// Of all ranks together, by rank: groups, order of collectives, matching of messages, deadlock.
Problems communication_problems(const std::vector<Program>& programs);
Problems deadlock_problems(const std::vector<Program>& programs);

}  // namespace shardplan
