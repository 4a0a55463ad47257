// Which rows have the size that a message names, and how full the GPU is when they are made.
#pragma once

#include <vector>

#include "tools/commands/why_oom.h"
#include "tools/from/oom_log.h"
#include "tools/options/question.h"

namespace shardplan {

// A capacity that the question limits is every GPU's; else a message's own comes before the
// cluster's. `memory` is the question's.
std::vector<OomDiagnosis> diagnose(const std::vector<OomEvent>& events, const Question& question,
                                   const MemoryEstimate& memory);

}  // namespace shardplan
