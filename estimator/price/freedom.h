// What a branch of a search leaves open. Lower bounds of the prices of its plans: memory_floor.h,
// time_floor.h, fitting_floor.h.
#pragma once

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

}  // namespace shardplan
