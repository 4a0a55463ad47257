// The answers of `accuracy`: for people, and as JSON with the sums.
#pragma once

#include <string>

#include "tools/accuracy/accuracy.h"

namespace shardplan {

std::string accuracy_text(const AccuracyReport& report);
std::string accuracy_json(const AccuracyReport& report);

}  // namespace shardplan
