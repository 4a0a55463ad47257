// Seconds that the host needs to launch a layer's kernels: where they exceed what the GPU needs,
// the host decides the speed. Rows by framework, with their source, in host_rows.h.
#pragma once

#include "estimator/plan/job.h"

namespace shardplan {

struct HostCost {
  double forward_s = 0;
  double backward_s = 0;
};

// One layer of this kind, without recomputation.
HostCost host_cost(const Job& job, const Plan& plan, const LayerSpec& layer);

// The same, and what recomputation of it would cost beside.
struct LayerHost {
  HostCost launches = {};
  HostCost chosen_by_operator = {};  // of a checkpoint that passes every operator through Python
  double checkpoint_s = 0;           // of one around a module
  RecomputeModules modules = {};     // that the layer has, but for norms
  std::int64_t separate_norms = 0;   // modules of their own, not fused into products
  bool waits = false;                // for every kernel: nothing hides behind the GPU
  bool combines = false;  // one microbatch's forward with another's backward, node by node
};
LayerHost layer_host(const Job& job, const Plan& plan, const LayerSpec& layer);

// What recomputation adds to a microbatch of one layer: to its forward what deciding takes, to its
// backward what replaying takes.
HostCost host_replay_cost(const Recompute& recompute, const LayerHost& host);

// With a pipeline torchtitan gathers once a step, and reduces after the last microbatch.
bool gathers_once(const FrameworkProfile& profile, const Plan& plan);
// How often torchtitan's FSDP2 gathers and reduces for a microbatch; 0 without it.
double shardings_per_microbatch(const Job& job, const Plan& plan);

// Embedding, head and loss of one microbatch.
HostCost host_cost_of_ends(const Job& job, const Plan& plan);

// One chunk's pass of one microbatch under Megatron's interleaved schedule, beside its layers.
HostCost host_cost_of_pass(const Job& job, const Plan& plan);

// Muon's update of one matrix.
double host_orthogonalize_s(const Job& job);

// Clipping and optimizer, per layer on this rank: a mean where some have experts.
double host_update_s(const Job& job, const Plan& plan);

}  // namespace shardplan
