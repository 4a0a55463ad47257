#include "search/questions/sweep.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "search/walk/parallel.h"

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
    if (usd_per_s <= 0) {
      return std::numeric_limits<double>::infinity();
    }
    needed = std::max(needed, target.tokens * usd_per_s / target.cost_usd);
  }
  return needed;
}

Reached reached(const SweepPoint& point, const SweepTarget& target) {
  const double needed = needed_tokens_per_s(point, target);
  return point.low_tokens_per_s >= needed    ? Reached::kYes
         : point.high_tokens_per_s >= needed ? Reached::kWithinSpread
                                             : Reached::kNo;
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
  in_parallel(std::ssize(plans), options.threads, [&](std::int64_t at, std::size_t) {
    const std::size_t i = static_cast<std::size_t>(at);
    const RankedPlan& ranked = plans[i];
    headroom[i].left_bytes =
        memory_limit_bytes(job.cluster, options.rule()) - basis_bytes(ranked.memory, options.basis);
    const auto largest = [&](FindMaxAxis axis) {
      const FindMaxResult found = find_max(job, ranked.plan, axis, options);
      return found.largest ? found.largest->value : 0;
    };
    headroom[i].largest_micro_batch = largest(FindMaxAxis::kMicroBatch);
    headroom[i].largest_sequence_length = largest(FindMaxAxis::kSequenceLength);
  });
  return headroom;
}

}  // namespace shardplan
