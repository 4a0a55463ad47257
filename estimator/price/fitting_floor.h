// The least memory and time together of a branch that leaves only the state open.
#pragma once

#include <cstddef>
#include <cstdint>

#include "estimator/price/freedom.h"

namespace shardplan {

// Where the branch leaves nothing open but zero, dp_replicate, dtypes of the state and offload:
// memory and time together. No plan of it that allocates at most `limit_bytes` takes less time, and
// none allocates less; the largest values where none can. Who asks for the time alone, and whether
// any plan fits, gets a lower floor of memory, sooner.
enum class FittingQuestion { kTime, kTimeAndMemory };
struct FittingFloor {
  std::int64_t allocated_bytes = 0;
  double step_time_s = 0;
};
bool opens_only_state(PriceTable& table, std::size_t freedom);
FittingFloor fitting_floor(PriceTable& table, const Plan& plan, std::size_t freedom,
                           std::int64_t limit_bytes, FittingQuestion question);

}  // namespace shardplan
