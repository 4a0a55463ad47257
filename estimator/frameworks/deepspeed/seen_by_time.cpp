#include "estimator/frameworks/deepspeed/seen_by_time.h"

#include "estimator/time/memo.h"

namespace shardplan::deepspeed {

// Its hooks, and how often it copies gradients, follow ZeRO, and ZeRO-3's its ranks.
std::int64_t sharding_seen_by_time(const Job& /*job*/, const Plan& plan, std::int64_t dp) {
  return packed(plan.zero, dp);
}

}  // namespace shardplan::deepspeed
