// The answer of `accuracy` as CSV.
#pragma once

#include <string>

#include "tools/accuracy/accuracy.h"

namespace shardplan {

std::string accuracy_csv(const AccuracyReport& report);  // one row per rank

}  // namespace shardplan
