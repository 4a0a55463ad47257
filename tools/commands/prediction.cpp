#include "tools/commands/prediction.h"

#include <algorithm>

#include "estimator/plan/units.h"
#include "tools/options/words.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

constexpr std::string_view kUnsupportedRule = "unsupported";  // how such rules' names begin

// The stage that decides: the one that needs most where the plan does not fit, else, and of several
// that do, the one that takes most.
const StageMemory& deciding_stage(const MemoryEstimate& memory) {
  const StageMemory& worst = memory.stages.at(static_cast<std::size_t>(memory.worst_stage));
  if (memory.fit != Fit::kDoesNotFit) {
    return worst;
  }
  const auto needed = [](const StageMemory& stage) {
    return stage.required_bytes + stage.outside_bytes;
  };
  const StageMemory& most = *std::ranges::max_element(memory.stages, {}, needed);
  return needed(most) > needed(worst) ? most : worst;
}

// " of stage 3", where it is not the stage that is shown first.
std::string most_at(const MemoryEstimate& memory, MemoryBasis basis) {
  const auto most = std::ranges::max_element(
      memory.stages, {}, [&](const StageMemory& stage) { return basis_bytes(stage, basis); });
  const StageMemory& first = memory.stages.at(static_cast<std::size_t>(memory.worst_stage));
  return basis_bytes(first, basis) == basis_bytes(*most, basis)
             ? ""
             : " of stage " + std::to_string(most->pp_rank);
}

}  // namespace

std::string fit_reason(const Job& job, const MemoryEstimate& memory) {
  if (memory.fit == Fit::kFits) {
    return "";
  }
  const StageMemory& stage = deciding_stage(memory);
  return "stage " + std::to_string(stage.pp_rank) + " at '" + stage.peak_moment() +
         "': allocated " + gib(stage.allocated_bytes) + ", required " + gib(stage.required_bytes) +
         " and " + gib(stage.outside_bytes) + " outside the allocator, device used " +
         gib(stage.device_used_bytes) + " of " + gib(device_capacity_bytes(job.cluster)) + " GiB" +
         (memory.fit == Fit::kTight
              ? "; runs only if the allocator gives cached memory back, which is slow"
              : "");
}

PredictedStatus status_of(Fit fit) {
  switch (fit) {
    case Fit::kFits: return PredictedStatus::kFits;
    case Fit::kTight: return PredictedStatus::kTight;
    case Fit::kDoesNotFit: return PredictedStatus::kDoesNotFit;
  }
  return PredictedStatus::kDoesNotFit;
}

bool is_negative(PredictedStatus status) {
  return status != PredictedStatus::kFits && status != PredictedStatus::kTight;
}

SearchOptions search_options(const MemoryRule& rule) {
  return {.memory_threshold = rule.threshold, .basis = rule.basis};
}

std::string limit_text(const ClusterSpec& cluster, const MemoryRule& rule) {
  const std::string text = shortest(100 * rule.threshold) + " % of the ";
  if (cluster.memory_limit_bytes) {
    return text + gib(*cluster.memory_limit_bytes) + " GiB that it is limited to";
  }
  return rule.basis == MemoryBasis::kAllocated
             ? text + "nominal " +
                   shortest(static_cast<double>(cluster.gpu.nominal_memory_bytes) / kGB) + " GB"
             : text + gib(cluster.gpu.memory_bytes) + " GiB that the driver reports";
}

std::string share_text(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule) {
  const RuleCheck check = check_rule(job, memory, rule);
  return std::string(name_of(rule.basis)) + " " + gib(check.value_bytes) +
         most_at(memory, rule.basis) + (check.kept() ? " <= " : " > ") + gib(check.limit_bytes) +
         " GiB, " + limit_text(job.cluster, rule);
}

Prediction predict(const Job& job, const Plan& plan, const MemoryRule& rule) {
  Prediction prediction;
  if (const std::optional<InvalidReason> reason = why_invalid(job, plan)) {
    prediction.status = reason->rule.starts_with(kUnsupportedRule) ? PredictedStatus::kUnsupported
                                                                   : PredictedStatus::kInvalid;
    prediction.reason = reason->rule + ": " + reason->message;
    return prediction;
  }
  prediction.memory = estimate_memory(job, plan);
  prediction.time = estimate_step_time(job, plan);
  prediction.status = status_of(prediction.memory.fit);
  prediction.reason = fit_reason(job, prediction.memory);
  prediction.judged = judge_memory(job, prediction.memory, rule);
  if (rule.is_asked && prediction.judged->verdict == MemoryVerdict::kOver) {
    prediction.reason = share_text(job, prediction.memory, rule);
  }
  return prediction;
}

}  // namespace shardplan
