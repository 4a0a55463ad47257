#include "estimator/frameworks/nanotron/update.h"

#include "estimator/frameworks/pieces/adamw_kernels.h"
#include "estimator/plan/number.h"
#include "estimator/time/sharding_time.h"

namespace shardplan::nanotron {
namespace {

// nanotron's weights are written by a cast of their own, and norms and scaling are of its whole
// buffer.
KernelBytes step_kernels(const Job& job, const Plan& plan) {
  const OptimizerBytes bytes = optimizer_bytes(job, plan);
  return {.fused = bytes.master + weight_bytes(plan),
          .streamed = bytes.grad + 2 * (bytes.moments + bytes.master) + unfused_bytes(job, bytes)};
}

// Per parameter and step: zeros written, read for the norm, scaled; and under ZeRO-1 the gathered
// weights are copied into a list, out of the process group's flat tensor and back
// (optim/clip_grads.py, distributed.py, all_gather_coalesced).
KernelBytes buffer_kernels(const Job& /*job*/, const Plan& plan, std::int64_t replicas) {
  const double grad = number(bytes_of(plan.grad_dtype));
  const double copies = plan.zero == 1 && replicas > 1 ? 3 * 2 * weight_bytes(plan) : 0;
  return {.fused = grad, .streamed = 3 * grad + copies};
}

// ZeRO stages up to all_reduced_zero do (trainer.py, training_step: reduce_scatter=False).
bool sums_whole(const FrameworkProfile& profile, const Plan& plan) {
  return plan.zero <= profile.all_reduced_zero;
}

}  // namespace

constinit const UpdateTimes kUpdate = {
    .sums_whole = sums_whole, .step_kernels = step_kernels, .buffer_kernels = buffer_kernels};

}  // namespace shardplan::nanotron
