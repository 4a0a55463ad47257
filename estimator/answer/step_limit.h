// The least time of a plan's step on a machine: what the same step would take if nothing were lost.
#pragma once

#include <optional>

#include "estimator/plan/job.h"

namespace shardplan {

// The job on a machine and with a program that lose nothing: estimate_step_time of it is the limit
// of a step, and step_account itemises that. Nothing where the GPU's rates were not measured.
//   products    at the best rate that this GPU kept for any of them, or at `products_flops_per_s`;
//               fp8 ones and grouped ones at the best of theirs
//   attention   at the best rate for sequences of the job's length or shorter, with any heads
//   all others  their bytes at the rate of a copy
//   collectives and sends  their bytes at the best rate measured for their kind, no latency
//   beside each other      computation and communication keep their whole rates
//   the host               is never waited for
// Communication hides behind all that does not depend on it: behind the products around it, the
// attention to earlier blocks, the other chunks of the pipeline, the computation of the experts'
// layer. What stays is what the plan itself asks for: recomputation, the bubble of the schedule,
// the update, and what nothing is beside. fp8 products and links that were not measured stay as
// estimated.
std::optional<Job> without_losses(const Job& job,
                                  std::optional<double> products_flops_per_s = std::nullopt);

}  // namespace shardplan
