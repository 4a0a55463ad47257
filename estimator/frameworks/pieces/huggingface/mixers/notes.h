// What an estimate says of recurrences and convolutions.
#pragma once

#include <string>

#include "estimator/plan/job.h"

namespace shardplan::huggingface {

// Which packages or operators run them, of a model that has some.
std::string recurrence_assumption(const Job& job);

}  // namespace shardplan::huggingface
