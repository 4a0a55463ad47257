// What one operation computes and moves: the FLOPs and bytes that its time is held against.
#pragma once

#include "validator/program/program.h"

namespace shardplan {

// Products and attention at 2 FLOPs each, pairs of a causal mask once; 0 for what is bound by
// memory.
double flops_of(const Operation& op);

// What the operation must read and write.
double bytes_of(const Program& program, const Operation& op);

}  // namespace shardplan
