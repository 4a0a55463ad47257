// Lower bounds of the prices of many plans at once: what a branch of a search can reach at best.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/price/price.h"

namespace shardplan {

// Axes that a branch leaves open, and the values that they may take. An empty list: decided, the
// plan's own value. tp, cp, ep, etp, pp, vpp, the layers of the chunks, dp and moe_buffer_factor
// are always decided.
struct PriceFreedom {
  std::vector<std::int64_t> micro_batch;
  std::vector<std::int64_t> zero;
  std::vector<std::int64_t> dp_replicate;
  std::vector<bool> sequence_parallel;
  std::vector<CpMethod> cp_method;
  std::vector<Recompute> recompute;
  std::vector<Schedule> schedule;
  std::vector<Precision> precision;
  std::vector<DType> grad_dtype;
  std::vector<DType> master_dtype;
  std::vector<DType> exp_avg_dtype;
  std::vector<DType> exp_avg_sq_dtype;
  std::vector<Offload> offload;
  std::vector<RankOrder> rank_order;
};

// Adds a level of the search to a table. Returns its number.
std::size_t add_freedom(PriceTable& table, PriceFreedom freedom);

// At most what every valid plan has that differs from `plan` in free axes only; the plan's own
// values there do not matter. The largest value where no such plan can be valid.
struct MemoryFloor {
  std::int64_t state_bytes = 0;      // of the fullest stage, between steps or during one
  std::int64_t allocated_bytes = 0;  // with activations
};
struct TimeFloor {
  double compute_s = 0;    // of the busiest stage, without recomputation
  double step_time_s = 0;  // with pipeline, communication and optimizer
};
// Beyond the limit, which no plan then keeps, not all of it may be counted.
std::int64_t state_floor_bytes(PriceTable& table, const Plan& plan, std::size_t freedom,
                               std::int64_t limit_bytes);
MemoryFloor memory_floor(PriceTable& table, const Plan& plan, std::size_t freedom);
TimeFloor time_floor(PriceTable& table, const Plan& plan, std::size_t freedom);

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
