// Hazards between the streams of one rank.
#pragma once

#include "validator/check/problems.h"
#include "validator/program/program.h"

namespace shardplan {

Problems stream_problems(const Program& program);  // hazards between streams

}  // namespace shardplan
