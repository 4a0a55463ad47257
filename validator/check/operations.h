// Checks of single operations: arguments, views, shapes, groups and events.
#pragma once

#include "validator/check/problems.h"
#include "validator/program/program.h"

namespace shardplan {

Problems operation_problems(const Program& program);  // arguments, views, shapes, groups, events

}  // namespace shardplan
