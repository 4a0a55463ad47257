// What hosts take to launch a layer's kernels: the numbers that were measured of a framework, and
// what time/ asks of it to add them up.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan {

struct HostCost {
  double forward_s = 0;
  double backward_s = 0;
};

inline constexpr double kMicro = 1e-6;

constexpr HostCost microseconds(double forward, double backward) {
  return {.forward_s = forward * kMicro, .backward_s = backward * kMicro};
}

// The virtual H200 machine of data/measured: a dense layer of Transformer Engine takes 3.5 ms there
// (host_steps_h200.jsonl), on a DGX H100 2.16 (estimator/frameworks/megatron/host.cpp).
inline constexpr double kMeasuringHost = 1.62;

// Seconds as measured, each with its source in the folder of its framework.
struct HostTable {
  double host_slowdown = 1;  // of the machine that it was measured on
  HostCost layer = {};
  HostCost sharded = {};  // gathers and reductions of a layer's parameters
  HostCost tensor_parallel = {};
  HostCost context_parallel = {};       // with two ranks
  HostCost further_hop = {};            // of a ring, for each rank beyond two
  HostCost both = {};                   // where tensor and context parallelism meet
  HostCost expert_parallel = {};        // exchanges whose sizes the host reads
  HostCost fused_expert_parallel = {};  // the same with fused permutation
  HostCost routing = {};                // of a layer with experts: router, permutations, exchanges
  HostCost fused_router_spares = {};    // where fused kernels choose them
  HostCost expert = {};                 // of each expert, where they run one after the other
  HostCost grouped_expert = {};         // of each expert, where one call runs all
  HostCost head_norms = {};             // norms of q and of k
  HostCost fp8 = {};                    // what a layer's linear modules add in fp8
  HostCost grouped_expert_fp8 = {};     // and each expert
  HostCost combined_schedule = {};      // of experts' exchanges beside other microbatches
  HostCost ends = {};                   // embedding, head and loss
  HostCost sharded_ends = {};
  double update_s = 0;         // clipping and optimizer, a layer
  double expert_update_s = 0;  // and each of its experts
};

// One row a framework.
struct HostLaunches {
  // None: the host is taken to launch in no time.
  const HostTable* (*table)(const FrameworkProfile& profile) = nullptr;
  // A layer's launches where some of its kernels are not launched one by one; none: all are.
  HostCost (*layer)(const Job& job, const Plan& plan, const LayerSpec& layer,
                    const HostLaunches& host, const HostTable& table) = nullptr;
  // Whether one launch runs a whole iteration; none: never.
  bool (*launches_once)(const FrameworkProfile& profile) = nullptr;
  // How often a microbatch gathers and reduces (HostTable::sharded); none: never.
  double (*shardings_per_microbatch)(const Job& job, const Plan& plan) = nullptr;
  // What hooks that gather parameters and reduce gradients add to a layer, and to the ends of a
  // microbatch; none: no hooks.
  HostCost (*layer_hooks)(const Job& job, const Plan& plan, const LayerSpec& layer) = nullptr;
  HostCost (*end_hooks)(const Job& job, const Plan& plan) = nullptr;
  // What latent attention instead of grouped queries and shared experts add to a layer; none: not
  // measured.
  HostCost (*latent_and_shared)(const Job& job, const LayerSpec& layer) = nullptr;
  // What a checkpoint that chooses by operators costs, given the launches of the layer without it;
  // none: it costs nothing.
  HostCost (*chosen_by_operator)(const Job& job, const Plan& plan, const LayerSpec& layer,
                                 const HostCost& launches, const HostTable& table) = nullptr;
  double checkpoint_s = 0;  // of one around a module, on kMeasuringHost
  // How many norms of a layer are modules of their own, not fused into products; none: both.
  std::int64_t (*separate_norms)(const Job& job, const LayerSpec& layer) = nullptr;
  // What an interleaved schedule adds to one pass of a chunk, either way, on a host of slowdown 1.
  HostCost chunk_pass = {};
};

inline constexpr HostLaunches kUnmeasuredHost = {};

}  // namespace shardplan
