// FLOPs that a token costs by the model alone, whatever runs it.
#pragma once

#include "estimator/plan/job.h"

namespace shardplan {

// Model FLOPs per token: 6 x matmul parameters + attention with the causal triangle counted once.
double model_flops_per_token(const Job& job);

}  // namespace shardplan
