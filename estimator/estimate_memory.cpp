#include <algorithm>
#include <stdexcept>

#include "estimator/block_memory.h"
#include "estimator/estimate.h"
#include "estimator/fujii2024.h"
#include "estimator/stage_memory.h"

namespace shardplan {
namespace {

Fit fit_of(const MemoryEstimate& estimate, std::int64_t capacity_bytes) {
  Fit fit = Fit::kFits;
  for (const StageMemory& stage : estimate.stages) {
    if (stage.required_bytes + stage.outside_bytes > capacity_bytes) {
      return Fit::kDoesNotFit;
    }
    if (stage.device_used_bytes > capacity_bytes) {
      fit = Fit::kTight;
    }
  }
  return fit;
}

std::int64_t worst_stage(const std::vector<StageMemory>& stages) {
  const auto worst = std::ranges::max_element(stages, {}, &StageMemory::device_used_bytes);
  return worst - stages.begin();
}

}  // namespace

std::int64_t nominal_capacity_bytes(const ClusterSpec& cluster) {
  return cluster.memory_limit_bytes.value_or(cluster.gpu.nominal_memory_bytes);
}

std::int64_t device_capacity_bytes(const ClusterSpec& cluster) {
  return cluster.memory_limit_bytes.value_or(cluster.gpu.memory_bytes);
}

MemoryEstimate estimate_memory(const Job& job, const Plan& plan) {
  if (const ValidityRule* rule = first_broken_rule(job, plan)) {
    throw std::logic_error("estimate_memory: the plan breaks " + std::string(rule->name));
  }
  if (job.profile.memory_model == MemoryModel::kFujii2024) {
    return estimate_fujii2024(job, plan);
  }
  MemoryEstimate estimate;
  const LayerPartition partition = partition_layers(job, plan);
  const BlockSet blocks = block_set(job, plan);
  for (std::int64_t pp_rank = 0; pp_rank < plan.pp; ++pp_rank) {
    const StagePieces pieces = stage_pieces(job, plan, partition, blocks, pp_rank);
    estimate.stages.push_back(stage_memory(job, plan, blocks, pieces));
  }
  estimate.worst_stage = worst_stage(estimate.stages);
  estimate.fit = fit_of(estimate, device_capacity_bytes(job.cluster));
  return estimate;
}

}  // namespace shardplan
