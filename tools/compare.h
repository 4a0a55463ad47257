// Two answers held against each other.
#pragma once

#include <string>

#include "tools/question.h"
#include "tools/table.h"

namespace shardplan {

struct Side {
  Question question;
  Prediction prediction;
};

// What differs, a row each: profile fields, plan fields, totals of every stage, and every row of
// the worst stage's ledger. `delta` is right minus left where both are numbers.
Table comparison(const Side& left, const Side& right);

}  // namespace shardplan
