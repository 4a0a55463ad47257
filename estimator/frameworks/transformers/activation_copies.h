// Time of saved tensors on their way to the host and back.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/time/update_times.h"

namespace shardplan::transformers {

// Seconds of a microbatch that its work does not hide; 0 where nothing is offloaded.
double activation_copies_s(const Job& job, const Plan& plan, const MicrobatchWork& work);

}  // namespace shardplan::transformers
