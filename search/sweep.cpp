#include "search/sweep.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "search/parallel.h"
#include "search/price_tables.h"

namespace shardplan {
namespace {

constexpr double kSecondsPerDay = 86400;
constexpr double kSecondsPerHour = 3600;

double seconds_of(double tokens, double tokens_per_s) {
  return tokens / tokens_per_s;
}

// The speed that the target asks of this cluster; infinity: it cannot be paid.
double needed_tokens_per_s(const SweepPoint& point, const SweepTarget& target) {
  double needed = target.tokens_per_s;
  if (target.days > 0) {
    needed = std::max(needed, target.tokens / (target.days * kSecondsPerDay));
  }
  if (target.cost_usd > 0) {
    const double usd_per_s = point.usd_per_hour / kSecondsPerHour;
    needed = std::max(needed, usd_per_s > 0 ? target.tokens * usd_per_s / target.cost_usd
                                            : std::numeric_limits<double>::infinity());
  }
  return needed;
}

Reached reached(const SweepPoint& point, const SweepTarget& target) {
  const double needed = needed_tokens_per_s(point, target);
  return point.low_tokens_per_s >= needed    ? Reached::kYes
         : point.high_tokens_per_s >= needed ? Reached::kWithinSpread
                                             : Reached::kNo;
}

// The rule that most plans of a family fail by: memory where any plan got that far.
std::string main_reason(const SearchResult& result) {
  const RuleCount* most = nullptr;
  for (const RuleCount& count : result.pruned) {
    if (count.rule == "does_not_fit" || count.rule == "undecided" ||
        count.rule.starts_with("cut")) {
      return "does_not_fit";
    }
    const bool is_refusal =
        count.rule.starts_with("invalid") || count.rule.starts_with("unsupported");
    if (is_refusal && (most == nullptr || count.plans > most->plans)) {
      most = &count;
    }
  }
  return most == nullptr ? "same plans as another value" : most->rule;
}

std::string nearest_fitting(const std::vector<PlanFamily>& families, std::size_t at) {
  std::string nearest;
  for (std::size_t distance = 1; distance < families.size() && nearest.empty(); ++distance) {
    if (at >= distance && families[at - distance].fitting > 0) {
      nearest = families[at - distance].value;
    } else if (at + distance < families.size() && families[at + distance].fitting > 0) {
      nearest = families[at + distance].value;
    }
  }
  return nearest;
}

}  // namespace

SweepPoint planned_point(const Job& job, RankedPlan plan, const SweepTarget& target,
                         const StepTimeSpread& spread) {
  SweepPoint point;
  point.job = job;
  point.best = std::move(plan);
  const double gpus = static_cast<double>(job.cluster.world_size());
  point.usd_per_hour = gpus * job.cluster.usd_per_gpu_hour;
  point.tokens_per_s = gpus * point.best->time.tokens_per_s_per_gpu;
  point.low_tokens_per_s = point.tokens_per_s / spread.high;
  point.high_tokens_per_s = point.tokens_per_s / spread.low;
  if (target.tokens > 0) {
    const double seconds = seconds_of(target.tokens, point.tokens_per_s);
    point.days = seconds / kSecondsPerDay;
    point.cost_usd = seconds / kSecondsPerHour * point.usd_per_hour;
  }
  point.reached = target.is_given() ? reached(point, target) : Reached::kYes;
  return point;
}

SweepPoint sweep_point(const Job& job, const SearchSpace& space, const SearchOptions& options,
                       const SweepTarget& target, const StepTimeSpread& spread) {
  SearchOptions one = options;
  one.top = 1;
  SearchResult result = search_plans(job, space, one);
  SweepPoint point;
  if (result.top.empty()) {
    point.job = job;
    point.usd_per_hour =
        static_cast<double>(job.cluster.world_size()) * job.cluster.usd_per_gpu_hour;
    point.smallest_bytes = result.smallest_price.allocated_bytes;
  } else {
    point = planned_point(job, std::move(result.top.front()), target, spread);
  }
  point.plans_in_space = result.plans_in_space;
  return point;
}

std::optional<std::size_t> choose_cluster(const std::vector<SweepPoint>& points,
                                          const SweepTarget& target) {
  const auto order = [&](const SweepPoint& point) {
    const bool has_no_price = point.usd_per_hour == 0;
    const double speed = target.cost_usd > 0 ? -point.tokens_per_s : 0;
    return std::tuple(has_no_price, speed, point.cost_usd, point.usd_per_hour,
                      point.job.cluster.world_size());
  };
  for (const Reached enough : {Reached::kYes, Reached::kWithinSpread}) {
    std::optional<std::size_t> chosen;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].best && points[i].reached == enough &&
          (!chosen || order(points[i]) < order(points[*chosen]))) {
        chosen = i;
      }
    }
    if (chosen) {
      return chosen;
    }
  }
  return std::nullopt;
}

std::vector<Headroom> headroom_of(const Job& job, const std::vector<RankedPlan>& plans,
                                  const SearchOptions& options) {
  std::vector<Headroom> headroom(plans.size());
  in_parallel(std::ssize(plans), options.threads, [&](std::int64_t at) {
    const std::size_t i = static_cast<std::size_t>(at);
    const RankedPlan& ranked = plans[i];
    headroom[i].left_bytes =
        memory_limit_bytes(job.cluster, options) - basis_bytes(ranked.memory, options.basis);
    const auto largest = [&](FindMaxAxis axis) {
      const FindMaxResult found = find_max(job, ranked.plan, axis, options);
      return found.largest ? found.largest->value : 0;
    };
    headroom[i].largest_micro_batch = largest(FindMaxAxis::kMicroBatch);
    headroom[i].largest_sequence_length = largest(FindMaxAxis::kSequenceLength);
  });
  return headroom;
}

std::vector<PlanFamily> plan_families(const Job& job, const SearchSpace& space,
                                      const std::vector<FamilyAxis>& axes,
                                      const SearchOptions& options) {
  std::vector<PlanFamily> all;
  SearchOptions one = options;
  one.top = 1;
  one.cuts = Cuts::kOverLimit;  // a family's counts are of all its plans
  PriceTables tables(job, options.threads);
  for (const FamilyAxis& axis : axes) {
    std::vector<PlanFamily> families;
    for (std::size_t value = 0; value < axis.values.size(); ++value) {
      const SearchResult result = search_plans(job, axis.only(space, value), one, tables);
      PlanFamily& family = families.emplace_back();
      family.axis = axis.name;
      family.value = axis.values[value];
      family.plans = result.plans_in_space;
      family.fitting = result.plans_fitting;
      if (!result.top.empty()) {
        family.best_tokens_per_s_per_gpu = result.top.front().time.tokens_per_s_per_gpu;
      } else {
        family.reason = main_reason(result);
        family.least_bytes = result.plans_distinct > 0 ? result.smallest_price.allocated_bytes : 0;
      }
    }
    for (std::size_t value = 0; value < families.size(); ++value) {
      if (families[value].fitting == 0) {
        families[value].nearest = nearest_fitting(families, value);
      }
    }
    all.insert(all.end(), families.begin(), families.end());
  }
  return all;
}

}  // namespace shardplan
