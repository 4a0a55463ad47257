// The memory of pipeline stages as bars: by component, against the card.
#pragma once

#include <string>

#include "estimator/estimate.h"
#include "tools/screen/screen.h"

namespace shardplan {

// A bar for each distinct stage, the fullest first, at most four; what stages are alike share one.
// Under them what the letters mean, with the GiB of the fullest stage.
std::string stage_bars(const Screen& screen, const Job& job, const MemoryEstimate& memory);

}  // namespace shardplan
