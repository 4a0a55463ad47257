// What the compute stream of a step waits for, from when its operations began and ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "validator/program/program.h"

namespace shardplan {

struct OperationTime {
  double begin_s = 0;  // from the start of the step; behind what it waits for
  double end_s = 0;
};

struct WaitedFor {
  std::string label = {};
  std::int64_t count = 0;
  double seconds = 0;
};

struct StepGaps {
  double step_s = 0;
  double all_s = 0;  // without an operation of the compute stream
  // Gaps longer than kLongGapSeconds by what they waited for: of the operations whose events the
  // one behind the gap waits for the last to end, "the host" if all ended before the gap began,
  // "the end" behind the last operation. The longest sum first.
  std::vector<WaitedFor> waits = {};
  double communication_s = 0;  // during which a collective or a message runs or waits for its peers
  double hidden_s = 0;         // of those, beside operations of the compute stream
};
inline constexpr double kLongGapSeconds = 20e-6;

// `times` by operation of the program.
StepGaps step_gaps(const Program& program, const std::vector<OperationTime>& times);

}  // namespace shardplan
