// The run of a file without the settings that it is refused for.
#pragma once

#include <optional>

#include "tools/report/report.h"

namespace shardplan {

// Leaves out the setting that the run is refused for, and again, a few times. Nothing for plans of
// options alone, for what no setting decides, and where what is left has no estimate either.
std::optional<NearestRun> nearest_run(const EstimateReport& report, const Options& options,
                                      const Library& library);

}  // namespace shardplan
