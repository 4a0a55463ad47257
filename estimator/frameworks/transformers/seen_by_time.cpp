#include "estimator/frameworks/transformers/seen_by_time.h"

namespace shardplan::transformers {

std::int64_t microbatches_seen_by_time(const Job& job, const Plan& plan) {
  return num_microbatches(job, plan);
}

std::int64_t sharding_seen_by_time(const Job& /*job*/, const Plan& plan, std::int64_t /*dp*/) {
  return plan.zero;
}

}  // namespace shardplan::transformers
