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

}  // namespace shardplan
