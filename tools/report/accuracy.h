// The answers of `accuracy`: for people, as one CSV row per rank, as JSON with the sums.
#pragma once

#include <string>

#include "tools/accuracy/accuracy.h"

namespace shardplan {

std::string accuracy_text(const AccuracyReport& report);
std::string accuracy_csv(const AccuracyReport& report);  // one row per rank
std::string accuracy_json(const AccuracyReport& report);

}  // namespace shardplan
