// An estimate for people: verdict first, GiB, what the answer rests on.
#pragma once

#include <string>

#include "tools/report/report.h"
#include "tools/report/terminal.h"

namespace shardplan {

std::string estimate_text(const EstimateReport& report, const Paint& paint);

}  // namespace shardplan
