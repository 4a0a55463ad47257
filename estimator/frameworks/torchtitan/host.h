// What hosts take to launch torchtitan's layers, eager and compiled, and FSDP2 around them.
#pragma once

#include "estimator/time/host_launches.h"

namespace shardplan::torchtitan {

extern const HostLaunches kHost;

// With a pipeline torchtitan gathers once a step, and reduces after the last microbatch.
bool gathers_once(const FrameworkProfile& profile, const Plan& plan);
// How often FSDP2 gathers and reduces for a microbatch; 0 without it.
double shardings_per_microbatch(const Job& job, const Plan& plan);

}  // namespace shardplan::torchtitan
