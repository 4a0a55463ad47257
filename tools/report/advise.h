// The answers of `advise`.
#pragma once

#include <string>

#include "tools/commands/advise.h"
#include "tools/report/table.h"
#include "tools/report/terminal.h"

namespace shardplan {

std::string advise_text(const AdviseReport& report, const Paint& paint);
std::string scaling_text(const AdviseReport& report);
Table advise_table(const AdviseReport& report);       // one row per change
Table scaling_csv_table(const AdviseReport& report);  // one row per value of an axis
std::string advise_json(const AdviseReport& report);

Judgement judged(const AdviseReport& report, const JudgedPlan& plan);
// `shardplan estimate` of a changed plan.
std::string command_of(const AdviseReport& report, const JudgedPlan& changed);
// "-10.9 %" of a ratio of speeds.
std::string speed_change(double ratio);

}  // namespace shardplan
