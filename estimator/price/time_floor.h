// The least time of a branch of a search.
#pragma once

#include <cstddef>

#include "estimator/price/freedom.h"

namespace shardplan {

// At most what every valid plan takes that differs from `plan` in free axes only. The largest value
// where no such plan can be valid.
struct TimeFloor {
  double compute_s = 0;    // of the busiest stage, without recomputation
  double step_time_s = 0;  // with pipeline, communication and optimizer
};
TimeFloor time_floor(PriceTable& table, const Plan& plan, std::size_t freedom);

}  // namespace shardplan
