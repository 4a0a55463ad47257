// Seconds that the host needs to launch a layer's kernels: where they exceed what the GPU needs,
// the host decides the speed. Rows by framework, with their source, in host_time.cpp.
#pragma once

#include "estimator/job.h"

namespace shardplan {

struct HostCost {
  double forward_s = 0;
  double backward_s = 0;
};

// One layer of this kind, without recomputation.
HostCost host_cost(const Job& job, const Plan& plan, const LayerSpec& layer);

// What replaying a forward of `forward_s` adds to a microbatch of one layer: to its forward what
// deciding takes, to its backward what replaying takes. `host_slowdown`: of ClusterSpec.
HostCost host_replay_cost(const Recompute& recompute, bool compiled, double forward_s,
                          double host_slowdown);

// With a pipeline torchtitan gathers once a step, and reduces after the last microbatch.
bool gathers_once(const FrameworkProfile& profile, const Plan& plan);
// How often torchtitan's FSDP2 gathers and reduces for a microbatch; 0 without it.
double shardings_per_microbatch(const Job& job, const Plan& plan);

// Embedding, head and loss of one microbatch.
HostCost host_cost_of_ends(const Job& job, const Plan& plan);

// Clipping and optimizer, per layer on this rank.
double host_update_s(const Job& job);

}  // namespace shardplan
