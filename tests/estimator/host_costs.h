// What a host takes by the launches of a job's framework.
#pragma once

#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/time/host_time.h"
#include "tests/measured_host.h"

namespace shardplan {

// Of the machine that data/measured is of.
inline constexpr double kMachine = 1.62;

inline const HostLaunches& launches_of(const Job& job) {
  return framework_of(job.profile).kernels.host;
}

inline HostCost host_cost(const Job& job, const Plan& plan, const LayerSpec& layer) {
  return host_cost(job, plan, layer, launches_of(job));
}

inline LayerHost layer_host(const Job& job, const Plan& plan, const LayerSpec& layer) {
  return layer_host(job, plan, layer, launches_of(job));
}

inline HostCost host_cost_of_ends(const Job& job, const Plan& plan) {
  return host_cost_of_ends(job, plan, launches_of(job));
}

inline HostCost host_cost_of_pass(const Job& job, const Plan& plan) {
  return host_cost_of_pass(job, plan, launches_of(job));
}

inline double both(const HostCost& cost) {
  return cost.forward_s + cost.backward_s;
}

inline Job titan() {
  Job job;
  job.model.layers.resize(2);
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  job.cluster.host_slowdown = kMachine;
  return job;
}

inline Job transformer_engine() {
  Job job;
  job.model.layers.resize(2);
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  return job;
}

}  // namespace shardplan
