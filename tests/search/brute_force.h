// The search done again the plain way: every plan of the space through the public functions for one
// plan, with its own idea of which plans mean the same.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "search/walk/search.h"

namespace shardplan {

struct BrutePlan {
  Plan plan;
  std::int64_t allocated_bytes = 0;
  std::int64_t basis_bytes = 0;
  std::int64_t device_used_bytes = 0;
  double tokens_per_s_per_gpu = 0;
};

struct BruteForce {
  std::int64_t plans_in_space = 0;
  std::vector<BrutePlan> plans;                // valid and unlike all before them, in plan order
  std::map<std::string, std::int64_t> pruned;  // the others
};

struct BruteRanking {
  std::vector<BrutePlan> top;
  std::vector<BrutePlan> pareto;               // least memory first
  std::map<std::string, std::int64_t> pruned;  // with those that do not fit
  std::int64_t fitting = 0;
};

// All plans of the space in plan order, one after another.
std::vector<Plan> all_plans(const Job& job, const SearchSpace& space);

BruteForce brute_force(const Job& job, const SearchSpace& space, MemoryBasis basis);

BruteRanking rank(const Job& job, const BruteForce& brute, const SearchOptions& options);

}  // namespace shardplan
