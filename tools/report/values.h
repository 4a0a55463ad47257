// What every JSON report is made of.
#pragma once

#include "estimator/plan/job.h"

#include <nlohmann/json.hpp>
#include <string>

#include "search/verdict/verdict.h"
#include "tools/report/table.h"

namespace shardplan {

// One line, keys in the order of their making. Text that is no UTF-8 (file names may be anything)
// is repaired rather than refused.
std::string one_line_of(const nlohmann::ordered_json& json);

// A file for people and programs: indented, but every list of numbers on one line.
std::string indented_text(const nlohmann::ordered_json& json);

// The `plan` object of a case line.
nlohmann::ordered_json plan_json(const Plan& plan);

// {"basis", "threshold", "value", "limit", "kept"}: the rule that a plan was judged by.
nlohmann::ordered_json rule_json(const Judgement& judged);

// An object for each row, by column; cells with nothing are null.
nlohmann::ordered_json rows_of(const Table& table);

// Members "adapters" and "quantization", where the job has any.
void add_tuning(nlohmann::ordered_json& json, const Job& job);

}  // namespace shardplan
