// Where the time of a step goes, operation by operation, and what of it is lost.
#pragma once

#include <string>

#include "estimator/answer/step_account.h"
#include "tools/commands/compare.h"
#include "tools/commands/prediction.h"
#include "tools/report/report.h"
#include "tools/report/table.h"

namespace shardplan {

// One row per operation of a step: seconds for programs, milliseconds for people.
Table account_table(const StepAccount& account);
std::string account_text(const StepAccount& account);

// One row per kind of work: what of the estimate is lost against the limit, in seconds or, for
// people, milliseconds.
Table limit_table(const StepComparison& comparison);
std::string limit_text(const StepComparison& comparison);

}  // namespace shardplan
