// Seconds that the host needs to launch a layer's kernels: where they exceed what the GPU needs,
// the host decides the speed. The numbers are those of the profile's HostTables; how a framework
// adds up its own is host_launches.h.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/time/host_launches.h"

namespace shardplan {

// How the framework launches experts.
ExpertLaunches launches_of_experts(const Job& job, const HostLaunches& host);

// Whether its host waits for every kernel: nothing hides behind the GPU.
bool waits_for_kernels(const Job& job, const HostLaunches& host);

// One layer of this kind, without recomputation.
HostCost host_cost(const Job& job, const Plan& plan, const LayerSpec& layer,
                   const HostLaunches& host);

// The same, and what recomputation of it would cost beside.
struct LayerHost {
  HostCost launches = {};
  double passes_without_gradients = 0;  // further forward passes, as many launches each
  HostCost chosen_by_operator = {};     // of a checkpoint that passes every operator through Python
  double checkpoint_s = 0;              // of one around a module
  RecomputeModules modules = {};        // that the layer has, but for norms
  std::int64_t separate_norms = 0;      // modules of their own, not fused into products
  bool waits = false;                   // for every kernel: nothing hides behind the GPU
  bool combines = false;  // one microbatch's forward with another's backward, node by node
};
LayerHost layer_host(const Job& job, const Plan& plan, const LayerSpec& layer,
                     const HostLaunches& host);

// What recomputation adds to a microbatch of one layer: to its forward what deciding takes, to its
// backward what replaying takes.
HostCost host_replay_cost(const Recompute& recompute, const LayerHost& host);

// Embedding, head and loss of one microbatch.
HostCost host_cost_of_ends(const Job& job, const Plan& plan, const HostLaunches& host);

// One chunk's pass of one microbatch under an interleaved schedule, beside its layers.
HostCost host_cost_of_pass(const Job& job, const Plan& plan, const HostLaunches& host);

// Clipping and optimizer, per layer on this rank: a mean where some have experts.
double host_update_s(const Job& job, const Plan& plan);

// --- how a framework adds up its own ---

// The numbers of the layers that the profile runs, eager or compiled; nullptr: none were measured.
const HostTable* host_table(const FrameworkProfile& profile);

// What the host of this cluster takes over that on which the table was measured.
double host_factor(const Job& job, const HostTable& table);

HostCost scaled(double factor, const HostCost& cost);
void add(HostCost& cost, double count, const HostCost& more);

// What tensor and context parallelism add to a layer.
HostCost split_launches(const HostTable& table, const Plan& plan);

// A layer that is launched kernel by kernel, without its experts.
HostCost eager_launches(const Job& job, const Plan& plan, const LayerSpec& layer,
                        const HostLaunches& host, const HostTable& table);

// What choosing experts and moving rows within a rank takes where all of it is launched.
HostCost routing_launches(const Job& job, const HostLaunches& host, const HostTable& table);

// What experts add to a layer, with as much for their routing.
HostCost expert_launches(const Job& job, const Plan& plan, const HostLaunches& host,
                         const HostTable& table, const HostCost& routing);

}  // namespace shardplan
