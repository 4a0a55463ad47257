// Kernels of an update parameter by parameter, as torch has them and as fused kernels do it.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/time/elementwise.h"

namespace shardplan {

// Bytes of what the optimizer keeps of one parameter.
struct OptimizerBytes {
  double grad = 0;
  double moments = 0;
  double master = 0;
};
OptimizerBytes optimizer_bytes(const Job& job, const Plan& plan);

// What torch's foreach AdamW moves more than a fused kernel: 0 where the optimizer is fused.
double unfused_bytes(const Job& job, const OptimizerBytes& bytes);

// What one parameter's update reads and writes. Fused: the gradient for its norm, then gradient,
// moments and main parameter read, moments, main parameter and weight written (34 bytes in fp32
// with bf16 weights).
KernelBytes adamw_kernels(const Job& job, const Plan& plan);

}  // namespace shardplan
