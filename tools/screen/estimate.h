// An estimate on one screen.
#pragma once

#include <string>

#include "tools/report/report.h"
#include "tools/screen/screen.h"

namespace shardplan {

std::string estimate_screen(const Screen& screen, const EstimateReport& report);

}  // namespace shardplan
