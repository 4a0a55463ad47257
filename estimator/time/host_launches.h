// What time/ asks of a framework to add up the seconds that hosts take to launch a layer's kernels.
#pragma once

#include <cstdint>
#include <span>

#include "estimator/plan/host_table.h"
#include "estimator/plan/job.h"

namespace shardplan {

// How experts are launched.
struct ExpertLaunches {
  bool are_grouped = true;        // one product for all of a rank's, else one after the other
  bool fuse_routing = false;      // experts are chosen by fused kernels, else by operators
  bool fuse_permutation = false;  // one kernel permutes rows, or puts them back
  bool read_sizes = true;         // of the parts in which rows go to other ranks
};

// One row a framework.
struct HostLaunches {
  // The numbers that its file states, of eager layers and of compiled ones; none: the host is taken
  // to launch in no time.
  std::span<const HostNumber> numbers = {};
  std::span<const HostNumber> compiled_numbers = {};
  // A layer's launches where some of its kernels are not launched one by one; none: all are.
  HostCost (*layer)(const Job& job, const Plan& plan, const LayerSpec& layer,
                    const HostLaunches& host, const HostTable& table) = nullptr;
  // Whether one launch runs a whole iteration; none: never.
  bool (*launches_once)(const FrameworkProfile& profile) = nullptr;
  // Whether the host waits for each kernel, so that nothing hides behind the GPU; none: never.
  bool (*waits_for_kernels)(const FrameworkProfile& profile) = nullptr;
  // None: grouped, by operators of PyTorch around the products.
  ExpertLaunches (*experts)(const FrameworkProfile& profile) = nullptr;
  // How often a microbatch gathers and reduces (HostTable::sharded); none: never.
  double (*shardings_per_microbatch)(const Job& job, const Plan& plan) = nullptr;
  // What hooks that gather parameters and reduce gradients add to a layer, and to the ends of a
  // microbatch; none: no hooks.
  HostCost (*layer_hooks)(const Job& job, const Plan& plan, const LayerSpec& layer,
                          const HostTable& table) = nullptr;
  HostCost (*end_hooks)(const Job& job, const Plan& plan, const HostTable& table) = nullptr;
  // What latent attention instead of grouped queries and shared experts add to a layer; none: not
  // measured.
  HostCost (*latent_and_shared)(const Job& job, const LayerSpec& layer,
                                const HostTable& table) = nullptr;
  // What a checkpoint that chooses by operators costs, given the launches of the layer without it;
  // none: it costs nothing.
  HostCost (*chosen_by_operator)(const Job& job, const Plan& plan, const LayerSpec& layer,
                                 const HostCost& launches, const HostTable& table) = nullptr;
  // How many norms of a layer are modules of their own, not fused into products; none: both.
  std::int64_t (*separate_norms)(const Job& job, const LayerSpec& layer) = nullptr;
};

inline constexpr HostLaunches kUnmeasuredHost = {};

}  // namespace shardplan
