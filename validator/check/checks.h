// What can be known about programs before they run. Every message names the rank, the operation and
// the tensor. An empty list means: every read has a dominating write, no two tensors that are alive
// share a byte, events order all streams, messages match, collectives have one order in every
// group, and all ranks together come to an end.
#pragma once

#include <string>
#include <vector>

#include "validator/check/problems.h"
#include "validator/program/program.h"

namespace shardplan {

// All of them, in this order; well-formedness first, and alone if it is broken.
Problems problems_of(const std::vector<Program>& programs);

// Throws std::logic_error with the first problem and how many there are: a bug of lowering.
void require_sound(const std::vector<Program>& programs);

}  // namespace shardplan
