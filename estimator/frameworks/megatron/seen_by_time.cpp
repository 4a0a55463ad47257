#include "estimator/frameworks/megatron/seen_by_time.h"

#include "estimator/frameworks/megatron/fsdp.h"

namespace shardplan::megatron {

// Transformer Engine rounds a weight to fp8 once a step, shared by all microbatches (kernels.cpp).
std::int64_t microbatches_seen_by_time(const Job& job, const Plan& plan) {
  return plan.precision == Precision::kFp8 ? num_microbatches(job, plan) : 0;
}

// Megatron-FSDP has hooks under ZeRO-3, and copies weight gradients that it may have to make of
// their own.
std::int64_t sharding_seen_by_time(const Job& job, const Plan& plan, std::int64_t /*dp*/) {
  return (fuses_weight_gradients(job, plan) ? 0 : 1) +
         2 * (is_megatron_fsdp(job, plan) ? plan.zero : 0);
}

}  // namespace shardplan::megatron
