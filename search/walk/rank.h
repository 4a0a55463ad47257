// Candidates of a search in order of preference, and the best few of them.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/price/price.h"

namespace shardplan {

// Plans with the same sizes and sharding are one family: they differ in how a step is run.
struct Family {
  std::int64_t tp = 1;
  std::int64_t cp = 1;
  std::int64_t ep = 1;
  std::int64_t pp = 1;
  std::int64_t zero = 0;
  friend bool operator==(const Family&, const Family&) = default;
};
Family family_of(const Plan& plan);

struct Candidate {
  std::int64_t index = 0;  // of the plan in its space
  Price price;
  Family family = {};
};

// Faster first; then less memory; then the earlier plan. No two candidates of a space are equal.
bool is_better(const Candidate& one, const Candidate& other);

enum class KeptPlans { kAll, kOnePerFamily };

// The best `capacity` of all candidates offered, best first; or those of the best families, each
// with its best candidate.
class Best {
 public:
  explicit Best(std::int64_t capacity, KeptPlans repeats = KeptPlans::kAll)
      : capacity_(capacity), repeats_(repeats) {}
  // Whether a candidate would be kept.
  bool admits(const Candidate& candidate) const;
  // Whether one as good as this would be kept, whatever its family is.
  bool admits_any(const Candidate& candidate) const;
  void offer(const Candidate& candidate);
  const std::vector<Candidate>& candidates() const { return candidates_; }

 private:
  std::int64_t capacity_;
  KeptPlans repeats_;
  std::vector<Candidate> candidates_;
};

// Candidates that no other beats in memory and speed at once; of equals the earliest. Least memory
// first, and so slowest first.
class Front {
 public:
  // Whether a candidate would be kept.
  bool admits(const Candidate& candidate) const;
  void offer(const Candidate& candidate);
  const std::vector<Candidate>& candidates() const { return candidates_; }

 private:
  std::vector<Candidate> candidates_;
};

// How far the predicted speeds of two plans of one job must lie apart to be told apart. The 43
// layouts of data/published/simumax_b200.jsonl, each group divided by its own bias (which moves all
// plans of a job alike), are 2.5 % off in the median and 5.9 % at the 90th percentile: two plans
// closer than twice the median may stand in either order.
inline constexpr double kSpeedUncertainty = 0.05;

// Numbers groups of plans that the model cannot tell apart, from 1: a group is what is within the
// uncertainty of its fastest. `tokens_per_s` is sorted, fastest first.
std::vector<std::int64_t> tied_groups(const std::vector<double>& tokens_per_s);

}  // namespace shardplan
