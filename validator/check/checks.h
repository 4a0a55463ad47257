// What can be known about programs before they run. Every message names the rank, the operation and
// the tensor. An empty list means: every read has a dominating write, no two tensors that are alive
// share a byte, events order all streams, messages match, collectives have one order in every
// group, and all ranks together come to an end.
#pragma once

#include <string>
#include <vector>

#include "validator/program/program.h"

namespace shardplan {

using Problems = std::vector<std::string>;

// Of one rank alone. The first two are about well-formedness; where they find something the others
// may not make sense.
Problems table_problems(const Program& program);      // sizes, addresses, overlapping lifetimes
Problems operation_problems(const Program& program);  // arguments, views, shapes, groups, events
Problems write_problems(const Program& program);      // reads without a dominating write
Problems stream_problems(const Program& program);     // hazards between streams

// Of all ranks together, by rank: groups, order of collectives, matching of messages, deadlock.
Problems communication_problems(const std::vector<Program>& programs);
Problems deadlock_problems(const std::vector<Program>& programs);

// All of them, in this order; well-formedness first, and alone if it is broken.
Problems problems_of(const std::vector<Program>& programs);

// Throws std::logic_error with the first problem and how many there are: a bug of lowering.
void require_sound(const std::vector<Program>& programs);

}  // namespace shardplan
