#include "estimator/answer/estimate_memory.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "estimator/answer/allocator_totals.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/framework.h"
#include "estimator/plan/capacity.h"

namespace shardplan {

std::int64_t card_bytes(const Job& job) {
  return framework_of(job.profile).formula != nullptr ? nominal_capacity_bytes(job.cluster)
                                                      : device_capacity_bytes(job.cluster);
}

namespace {

MemoryEstimate memory_of(const Job& job, const Plan& plan, std::optional<std::int64_t> data_rank) {
  if (const ValidityRule* rule = first_broken_rule(job, plan)) {
    throw std::logic_error("estimate_memory: the plan breaks " + std::string(rule->name));
  }
  const Framework& framework = framework_of(job.profile);
  if (framework.formula != nullptr) {
    return framework.formula(job, plan);
  }
  MemoryEstimate estimate;
  const PlanPieces pieces = plan_pieces(job, plan, data_rank);
  for (const StagePieces& stage : pieces.stages) {
    estimate.stages.push_back(stage_memory(job, plan, pieces.blocks, stage));
  }
  replay_stages(job, plan, pieces, estimate.stages);
  const auto worst = std::ranges::max_element(estimate.stages, {}, &StageMemory::device_used_bytes);
  estimate.worst_stage = worst - estimate.stages.begin();
  estimate.fit = fit_of(job, estimate.stages);
  if (framework.add_assumptions != nullptr) {
    framework.add_assumptions(job, plan, pieces, estimate.assumptions);
  }
  estimate.not_counted = framework.not_counted(job.profile);
  return estimate;
}

}  // namespace

MemoryEstimate estimate_memory(const Job& job, const Plan& plan) {
  return memory_of(job, plan, std::nullopt);
}

bool knows_data_ranks(const Job& job, const Plan& plan) {
  const Framework& framework = framework_of(job.profile);
  return framework.knows_data_ranks != nullptr && framework.knows_data_ranks(plan);
}

MemoryEstimate estimate_memory_of_rank(const Job& job, const Plan& plan, std::int64_t data_rank) {
  return memory_of(job, plan, data_rank);
}

}  // namespace shardplan
