#include "estimator/frameworks/pieces/adamw_kernels.h"

#include "estimator/plan/number.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {

OptimizerBytes optimizer_bytes(const Job& job, const Plan& plan) {
  return {.grad = number(bytes_of(plan.grad_dtype)),
          .moments = job.optimizer == OptimizerKind::kAdamW
                         ? number(bytes_of(plan.exp_avg_dtype) + bytes_of(plan.exp_avg_sq_dtype))
                         : number(bytes_of(plan.exp_avg_dtype)),
          .master = number(bytes_of(plan.master_dtype))};
}

// Norm 4, decay 8, moments 12 and 8 + 12, root 8, division 8, addition 8, update 16, weight 6.
double unfused_bytes(const Job& job, const OptimizerBytes& bytes) {
  return job.profile.fused_optimizer ? 0 : 14 * bytes.master;
}

KernelBytes adamw_kernels(const Job& job, const Plan& plan) {
  const OptimizerBytes bytes = optimizer_bytes(job, plan);
  return {.fused = 2 * bytes.grad + 2 * (bytes.moments + bytes.master) + weight_bytes(plan) +
                   unfused_bytes(job, bytes)};
}

}  // namespace shardplan
