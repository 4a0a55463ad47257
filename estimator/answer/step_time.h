// The answer about time: where the seconds of one optimizer step go on the critical pipeline rank.
#pragma once

#include <string_view>

#include "estimator/plan/job.h"

namespace shardplan {

struct StepTime {
  double compute_s = 0;     // GEMM, attention and memory-bound kernels of all microbatches
  double recompute_s = 0;   // the part of backward that replays forward
  double exposed_tp_s = 0;  // communication not hidden, by dimension
  double exposed_cp_s = 0;
  double exposed_ep_s = 0;
  double exposed_pp_s = 0;
  double exposed_dp_s = 0;
  double bubble_s = 0;  // waiting in the pipeline
  double optimizer_s = 0;
  double host_s = 0;
  double total_s = 0;  // the sum of the above
  double tokens_per_s_per_gpu = 0;
  double model_flops_per_token = 0;  // 6N + attention, causal triangle counted once; no recompute
  double mfu = 0;                    // model FLOPs over the dense peak of the plan's products
  std::string_view mfu_peak = {};    // which that is: "bf16", "fp8", "tf32"
  double peak_flops_per_s = 0;
  bool calibrated = false;  // false: datasheet peaks and documented efficiencies
};

// Seconds of one optimizer step and where they go. Of valid plans only, else logic_error.
StepTime estimate_step_time(const Job& job, const Plan& plan);

}  // namespace shardplan
