// Two answers held against each other.
#pragma once

#include <string>

#include "tools/commands/command.h"
#include "tools/options/question.h"
#include "tools/report/table.h"

namespace shardplan {

struct Side {
  Question question;
  Prediction prediction;
};

// What differs, a row each: the job, profile fields, plan fields, totals of the worst stage and
// every row of its ledger in bytes, the step's time and its parts in seconds. `delta` is right
// minus left where both are numbers.
Table comparison(const Side& left, const Side& right);

ExitCode run_compare(const Arguments& arguments);

}  // namespace shardplan
