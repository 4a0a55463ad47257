// Every plan of a cluster: enumerate, prune with a named reason, price, rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/job.h"
#include "estimator/price.h"

namespace shardplan {

// The values each axis takes. The space is their product; dp follows from the others.
struct SearchSpace {
  std::vector<std::int64_t> tp;
  std::vector<std::int64_t> cp;
  std::vector<std::int64_t> ep;
  std::vector<std::int64_t> etp;
  std::vector<std::int64_t> pp;
  std::vector<std::int64_t> vpp;
  std::vector<std::int64_t> dp;  // empty: whatever follows
  std::vector<std::int64_t> dp_replicate;
  std::vector<std::int64_t> zero;
  std::vector<std::int64_t> micro_batch;
  std::vector<bool> sequence_parallel;
  std::vector<Schedule> schedule;
  std::vector<CpMethod> cp_method;
  std::vector<Recompute> recompute;
  std::vector<Precision> precision;
  std::vector<DType> grad_dtype;
  std::vector<std::array<Dimension, 4>> rank_order;
  bool uneven_layers = true;  // also the splits that count embedding and head as layers
};

// All values worth trying for this job under its profile.
SearchSpace default_space(const Job& job);

enum class MemoryBasis { kAllocated, kReserved, kRequired, kDeviceUsed };

struct SearchOptions {
  double memory_threshold = 0.80;  // share of the capacity that belongs to the basis
  MemoryBasis basis = MemoryBasis::kAllocated;
  std::int64_t top = 10;
};

struct RankedPlan {
  Plan plan;
  Price price;
  MemoryEstimate memory;  // of the finalists: the full estimate
  StepTime time;
  bool exceeds_device = false;  // device_used is above the card although the basis fits
};

struct RuleCount {
  std::string rule;  // "invalid: heads_divisible_by_tp", "does_not_fit", ...
  std::int64_t plans = 0;
};

struct SearchResult {
  std::vector<RankedPlan> top;    // fastest first; ties by memory, then by plan order
  std::vector<RuleCount> pruned;  // in the order in which the rules are tried
  std::int64_t plans_in_space = 0;
  std::int64_t plans_priced = 0;
  std::int64_t plans_fitting = 0;
  Plan smallest;  // when nothing fits: the valid plan with the least memory
  Price smallest_price;
  double seconds = 0;
};

SearchResult search_plans(const Job& job, const SearchSpace& space, const SearchOptions& options);

}  // namespace shardplan
