#include "estimator/frameworks/torchtitan/seen_by_time.h"

#include <bit>

#include "estimator/frameworks/torchtitan/host.h"
#include "estimator/frameworks/torchtitan/kernels.h"

namespace shardplan::torchtitan {

std::int64_t microbatches_seen_by_time(const Job& job, const Plan& plan) {
  return accumulated_microbatches(job, plan);
}

// Its hosts gather and reduce for a microbatch.
std::int64_t sharding_seen_by_time(const Job& job, const Plan& plan, std::int64_t /*dp*/) {
  return std::bit_cast<std::int64_t>(shardings_per_microbatch(job, plan));
}

}  // namespace shardplan::torchtitan
