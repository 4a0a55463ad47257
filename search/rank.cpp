#include "search/rank.h"

#include <algorithm>

namespace shardplan {

bool is_better(const Candidate& one, const Candidate& other) {
  if (one.price.tokens_per_s_per_gpu != other.price.tokens_per_s_per_gpu) {
    return one.price.tokens_per_s_per_gpu > other.price.tokens_per_s_per_gpu;
  }
  if (one.price.allocated_bytes != other.price.allocated_bytes) {
    return one.price.allocated_bytes < other.price.allocated_bytes;
  }
  return one.index < other.index;
}

bool Best::admits(const Candidate& candidate) const {
  return static_cast<std::int64_t>(candidates_.size()) < capacity_ ||
         (capacity_ > 0 && is_better(candidate, candidates_.back()));
}

void Best::offer(const Candidate& candidate) {
  if (!admits(candidate)) {
    return;
  }
  candidates_.insert(std::ranges::upper_bound(candidates_, candidate, is_better), candidate);
  if (static_cast<std::int64_t>(candidates_.size()) > capacity_) {
    candidates_.pop_back();
  }
}

}  // namespace shardplan
