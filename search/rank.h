// Candidates of a search in order of preference, and the best few of them.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/price.h"

namespace shardplan {

struct Candidate {
  std::int64_t index = 0;  // of the plan in its space
  Price price;
};

// Faster first; then less memory; then the earlier plan. No two candidates of a space are equal.
bool is_better(const Candidate& one, const Candidate& other);

// The best `capacity` of all candidates offered, best first.
class Best {
 public:
  explicit Best(std::int64_t capacity) : capacity_(capacity) {}
  // Whether a candidate would be kept.
  bool admits(const Candidate& candidate) const;
  void offer(const Candidate& candidate);
  const std::vector<Candidate>& candidates() const { return candidates_; }

 private:
  std::int64_t capacity_;
  std::vector<Candidate> candidates_;
};

}  // namespace shardplan
