// The least memory of a branch of a search.
#pragma once

#include <cstddef>
#include <cstdint>

#include "estimator/price/freedom.h"

namespace shardplan {

// At most what every valid plan has that differs from `plan` in free axes only; the plan's own
// values there do not matter. The largest value where no such plan can be valid.
struct MemoryFloor {
  std::int64_t state_bytes = 0;      // of the fullest stage, between steps or during one
  std::int64_t allocated_bytes = 0;  // with activations
};
// Beyond the limit, which no plan then keeps, not all of it may be counted.
std::int64_t state_floor_bytes(PriceTable& table, const Plan& plan, std::size_t freedom,
                               std::int64_t limit_bytes);
MemoryFloor memory_floor(PriceTable& table, const Plan& plan, std::size_t freedom);

}  // namespace shardplan
