// Checks of one rank's table: sizes, addresses, lifetimes, and writes before reads.
#pragma once

#include "validator/check/problems.h"
#include "validator/program/program.h"

namespace shardplan {

Problems table_problems(const Program& program);  // sizes, addresses, overlapping lifetimes

Problems write_problems(const Program& program);  // reads without a dominating write

}  // namespace shardplan
