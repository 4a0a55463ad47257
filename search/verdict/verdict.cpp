#include "search/verdict/verdict.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace shardplan {
namespace {

std::int64_t left_bytes(const Job& job, const MemoryEstimate& memory) {
  return card_bytes(job) - basis_bytes(memory, MemoryBasis::kDeviceUsed);
}

}  // namespace

std::int64_t memory_limit_bytes(const ClusterSpec& cluster, const MemoryRule& rule) {
  const std::int64_t capacity = rule.basis == MemoryBasis::kAllocated
                                    ? nominal_capacity_bytes(cluster)
                                    : device_capacity_bytes(cluster);
  return static_cast<std::int64_t>(std::floor(rule.threshold * static_cast<double>(capacity)));
}

std::int64_t basis_bytes(const StageMemory& stage, MemoryBasis basis) {
  switch (basis) {
    case MemoryBasis::kAllocated: return stage.allocated_bytes;
    case MemoryBasis::kReserved: return stage.reserved_bytes;
    case MemoryBasis::kRequired: return stage.required_bytes;
    case MemoryBasis::kDeviceUsed: return stage.device_used_bytes;
  }
  throw std::logic_error("basis_bytes: unknown basis");
}

std::int64_t basis_bytes(const MemoryEstimate& memory, MemoryBasis basis) {
  std::int64_t bytes = 0;
  for (const StageMemory& stage : memory.stages) {
    bytes = std::max(bytes, basis_bytes(stage, basis));
  }
  return bytes;
}

RuleCheck check_rule(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule) {
  return {.value_bytes = basis_bytes(memory, rule.basis),
          .limit_bytes = memory_limit_bytes(job.cluster, rule)};
}

MemoryVerdict verdict_of(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule) {
  if (memory.fit == Fit::kDoesNotFit) {
    return MemoryVerdict::kDoesNotFit;
  }
  if (left_bytes(job, memory) < 0) {
    return MemoryVerdict::kTight;
  }
  return check_rule(job, memory, rule).kept() ? MemoryVerdict::kFits : MemoryVerdict::kOver;
}

Judgement judge_memory(const Job& job, const MemoryEstimate& memory, const MemoryRule& rule) {
  return {.verdict = verdict_of(job, memory, rule),
          .rule = rule,
          .check = check_rule(job, memory, rule),
          .left_bytes = left_bytes(job, memory)};
}

}  // namespace shardplan
