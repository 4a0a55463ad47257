// What the estimate has allocated when the tensors of a row are made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"
#include "estimator/plan/plan.h"

namespace shardplan {

struct RowLevels {
  std::string moment;        // where in the step: "loss forward"
  bool is_first = false;     // step 1, in which state that it makes is not there yet
  std::int64_t lowest = 0;   // with the first of the row's tensors, bytes
  std::int64_t highest = 0;  // and with the last
  std::int64_t behind = 0;   // bytes of rows that the same event makes later
  std::int64_t before = 0;   // the most that the run has allocated earlier, and survived
};

// In step 1, before and after its first microbatch has made gradients, and in later ones.
std::vector<RowLevels> levels_of(const StageMemory& stage, const Row& row, const Job& job,
                                 const Plan& plan);

}  // namespace shardplan
