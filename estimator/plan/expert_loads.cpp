#include "estimator/plan/expert_loads.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "estimator/plan/expert_routing.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr std::size_t kMostRanks = 1024;  // more differ by little: 3.25 of 1024, 3.44 of 2048

// Keys and what is drawn from them: the mixing function of SplitMix64 (Steele, Lea, Flood: Fast
// splittable pseudorandom number generators, OOPSLA 2014).
std::uint64_t mixed(std::uint64_t key) {
  key += 0x9e3779b97f4a7c15U;
  key = (key ^ (key >> 30U)) * 0xbf58476d1ce4e5b9U;
  key = (key ^ (key >> 27U)) * 0x94d049bb133111ebU;
  return key ^ (key >> 31U);
}

std::uint64_t joined(std::uint64_t key, std::uint64_t next) {
  return mixed(key ^ mixed(next));
}

// The sum of twelve numbers between 0 and 1 has variance 1, and is close to normal.
double normal(std::uint64_t key) {
  constexpr int kNumbers = 12;
  double sum = 0;
  for (int i = 0; i < kNumbers; ++i) {
    key = mixed(key);
    sum += static_cast<double>(key >> 11U) * 0x1.0p-53;
  }
  return sum - kNumbers / 2.0;
}

// By the number of normal numbers: the integral of 1 - F(x)^count over positive x less that of
// F(x)^count over negative ones. As far as eight standard deviations.
std::vector<double> largest_normals() {
  constexpr double kWidth = 0.1;
  constexpr int kSteps = 80;
  std::vector<double> largest(1 + kMostRanks);
  for (int i = -kSteps; i < kSteps; ++i) {
    const double x = (i + 0.5) * kWidth;
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    double all_below = 1;
    for (double& sum : largest) {
      sum += ((x > 0 ? 1 : 0) - all_below) * kWidth;
      all_below *= below;
    }
  }
  return largest;
}

}  // namespace

// Tokens of all ranks that exchange rows choose one after the other.
double load_spread(const Job& job, const Plan& plan) {
  const ExpertRows rows = job.profile.expert_rows();
  const bool varies =
      job.profile.layout.experts_vary_by_chance && job.model.has_moe_layers() && rows.capacity == 0;
  if (!varies || plan.ep == 1) {
    return 0;
  }
  const std::int64_t tokens = sharded_tokens(job, plan) * plan.ep * plan.etp;
  const RankChoices choices =
      choices_of(job.model.moe, div_ceil(job.model.moe.num_experts, plan.ep));
  const double chance = std::sqrt(choices.variance / number(tokens)) / choices.mean;
  return std::max(chance, rows.spread);
}

double fullest_load(const Job& job, const Plan& plan) {
  const double spread = load_spread(job, plan);
  const double beyond = spread > 0 ? spread * expected_largest_normal(plan.ep) : 0;
  return job.profile.expert_rows().imbalance * (1 + beyond);
}

double expected_largest_normal(std::int64_t count) {
  static const std::vector<double> table = largest_normals();  // a search asks again and again
  const auto last = static_cast<std::int64_t>(table.size()) - 1;
  return table[static_cast<std::size_t>(std::clamp<std::int64_t>(count, 1, last))];
}

ExpertLoads::ExpertLoads(double spread, std::int64_t rank, std::int64_t pass)
    : spread_(spread),
      key_(joined(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(pass))) {}

double ExpertLoads::load(std::size_t block) const {
  return is_even() ? 1 : std::max(0.0, 1 + spread_ * normal(joined(key_, block)));
}

}  // namespace shardplan
