// --lora-rank and its like: what of a model is trained, and in what its frozen weights are kept.
#pragma once

#include "estimator/plan/job.h"
#include "tools/options/options.h"

namespace shardplan {

// The options over what the job has. InputError for those that have nothing to say something of.
void apply_tuning(Job& job, const Options& options);

}  // namespace shardplan
