#include "search/walk/rank.h"

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

Family family_of(const Plan& plan) {
  return {.tp = plan.tp, .cp = plan.cp, .ep = plan.ep, .pp = plan.pp, .zero = plan.zero};
}

bool Best::admits_any(const Candidate& candidate) const {
  return std::ssize(candidates_) < capacity_ ||
         (capacity_ > 0 && is_better(candidate, candidates_.back()));
}

bool Best::admits(const Candidate& candidate) const {
  if (repeats_ == KeptPlans::kOnePerFamily) {
    const auto same = std::ranges::find(candidates_, candidate.family, &Candidate::family);
    if (same != candidates_.end()) {
      return is_better(candidate, *same);
    }
  }
  return admits_any(candidate);
}

void Best::offer(const Candidate& candidate) {
  if (!admits(candidate)) {
    return;
  }
  if (repeats_ == KeptPlans::kOnePerFamily) {
    std::erase_if(candidates_,
                  [&](const Candidate& kept) { return kept.family == candidate.family; });
  }
  candidates_.insert(std::ranges::upper_bound(candidates_, candidate, is_better), candidate);
  if (std::ssize(candidates_) > capacity_) {
    candidates_.pop_back();
  }
}

bool Front::admits(const Candidate& candidate) const {
  const Price& price = candidate.price;
  const auto more =
      std::ranges::upper_bound(candidates_, price.allocated_bytes, {},
                               [](const Candidate& kept) { return kept.price.allocated_bytes; });
  if (more == candidates_.begin()) {
    return true;
  }
  const Candidate& rival = *std::prev(more);  // the fastest with no more memory
  if (rival.price.tokens_per_s_per_gpu != price.tokens_per_s_per_gpu) {
    return rival.price.tokens_per_s_per_gpu < price.tokens_per_s_per_gpu;
  }
  return rival.price.allocated_bytes == price.allocated_bytes && candidate.index < rival.index;
}

void Front::offer(const Candidate& candidate) {
  if (!admits(candidate)) {
    return;
  }
  const auto first =
      std::ranges::lower_bound(candidates_, candidate.price.allocated_bytes, {},
                               [](const Candidate& kept) { return kept.price.allocated_bytes; });
  const auto last = std::find_if(first, candidates_.end(), [&](const Candidate& kept) {
    return kept.price.tokens_per_s_per_gpu > candidate.price.tokens_per_s_per_gpu;
  });
  candidates_.insert(candidates_.erase(first, last), candidate);
}

std::vector<std::int64_t> tied_groups(const std::vector<double>& tokens_per_s) {
  std::vector<std::int64_t> groups;
  double fastest = 0;
  for (const double speed : tokens_per_s) {
    const bool is_slower = groups.empty() || speed < (1 - kSpeedUncertainty) * fastest;
    fastest = is_slower ? speed : fastest;
    groups.push_back(groups.empty() ? 1 : groups.back() + (is_slower ? 1 : 0));
  }
  return groups;
}

}  // namespace shardplan
