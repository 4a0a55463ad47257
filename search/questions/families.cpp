// A family is the search of its part of the space. Where a plan of it fits, one walk of the whole
// space has counted it together with all others; where none does, it is searched by itself.
#include "search/questions/families.h"

#include <map>
#include <optional>
#include <utility>

#include "search/space/rules.h"
#include "search/walk/parallel.h"
#include "search/walk/walk.h"

namespace shardplan {
namespace {

// Of a family's fastest plans as many are replayed, should the card refuse those before.
constexpr std::int64_t kReplayed = 64;

// What one walk finds of a family.
struct Tally {
  std::int64_t fitting = 0;  // by the upper bound of the basis
  Best best{kReplayed};      // with those of which a replay must tell
};
using Tallies = std::vector<std::vector<Tally>>;  // by axis and value

struct FamilyTask {
  const WalkTask& walk;
  const std::vector<FamilyAxis>& axes;
  std::vector<std::vector<SearchSpace>> parts;  // by axis and value
};

Tallies no_tallies(const std::vector<FamilyAxis>& axes) {
  Tallies tallies;
  for (const FamilyAxis& axis : axes) { tallies.emplace_back(axis.values.size()); }
  return tallies;
}

bool is_surely_fitting(const WalkTask& task, const Price& price) {
  return upper_basis_bytes(price, task.options.basis) <= task.limit_bytes;
}

// Counts the plan in its family of every axis, unless an earlier plan of that stands for it.
void count(const FamilyTask& task, const Plan& plan, const Candidate& candidate, Tallies& tallies) {
  const Job& job = task.walk.job;
  const SearchSpace& whole = task.walk.rules.space().values;
  const bool has_twin = first_equivalence(job, whole, plan) != nullptr;
  for (std::size_t axis = 0; axis < task.axes.size(); ++axis) {
    const std::size_t value = task.axes[axis].value_of(plan);
    if (has_twin && first_equivalence(job, task.parts[axis][value], plan) != nullptr) {
      continue;
    }
    Tally& tally = tallies[axis][value];
    tally.fitting += is_surely_fitting(task.walk, candidate.price) ? 1 : 0;
    tally.best.offer(candidate);
  }
}

Tallies count_all(const FamilyTask& task, ProgressReporter& reporter) {
  std::vector<Tallies> of_threads(static_cast<std::size_t>(num_threads(task.walk.options.threads)),
                                  no_tallies(task.axes));
  const auto visit = [&](const Plan& plan, const Candidate& candidate, std::size_t thread) {
    count(task, plan, candidate, of_threads[thread]);
  };
  visit_plans(task.walk, visit, reporter);
  Tallies all = no_tallies(task.axes);
  for (const Tallies& own : of_threads) {
    for (std::size_t axis = 0; axis < all.size(); ++axis) {
      for (std::size_t value = 0; value < all[axis].size(); ++value) {
        all[axis][value].fitting += own[axis][value].fitting;
        for (const Candidate& candidate : own[axis][value].best.candidates()) {
          all[axis][value].best.offer(candidate);
        }
      }
    }
  }
  return all;
}

// Replays each plan once, as a fast plan is the best one of several families.
class Replays {
 public:
  explicit Replays(const WalkTask& task) : task_(task) {}

  // Replays the best candidate of every family, on all threads.
  void replay_first(const Tallies& tallies) {
    for (const std::vector<Tally>& families : tallies) {
      for (const Tally& tally : families) {
        if (!tally.best.candidates().empty()) {
          speeds_.try_emplace(tally.best.candidates().front().index);
        }
      }
    }
    std::vector<std::pair<const std::int64_t, std::optional<double>>*> plans;
    for (auto& plan : speeds_) { plans.push_back(&plan); }
    in_parallel(std::ssize(plans), task_.options.threads, [&](std::int64_t at, std::size_t) {
      auto& [index, speed] = *plans[static_cast<std::size_t>(at)];
      speed = replayed(index);
    });
  }

  // Tokens per second and GPU of the plan by its index; nothing where it does not fit.
  std::optional<double> speed_of(std::int64_t index) {
    const auto [known, is_new] = speeds_.try_emplace(index);
    if (is_new) {
      known->second = replayed(index);
    }
    return known->second;
  }

 private:
  std::optional<double> replayed(std::int64_t index) const {
    const Job& job = task_.job;
    const Plan plan = plan_at(task_.rules.space(), index);
    return fits(job, estimate_memory(job, plan), task_.options)
               ? std::optional(estimate_step_time(job, plan).tokens_per_s_per_gpu)
               : std::nullopt;
  }

  const WalkTask& task_;
  std::map<std::int64_t, std::optional<double>> speeds_;
};

// The fastest plan that a replay lets fit; false: none of those replayed.
bool find_best(const WalkTask& task, const Tally& tally, Replays& replays, PlanFamily& family) {
  family.fitting = tally.fitting;
  for (const Candidate& candidate : tally.best.candidates()) {
    const std::optional<double> speed = replays.speed_of(candidate.index);
    const bool was_counted = is_surely_fitting(task, candidate.price);
    family.fitting += (speed ? 1 : 0) - (was_counted ? 1 : 0);
    if (speed) {
      family.best_tokens_per_s_per_gpu = *speed;
      return true;
    }
  }
  return false;
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

// Returns how many plans it has priced.
std::int64_t search_alone(const WalkTask& task, const SearchSpace& part, PlanFamily& family) {
  const SearchResult result = search_plans(task.job, part, task.options, task.tables);
  family.fitting = result.plans_fitting;
  if (!result.top.empty()) {
    family.best_tokens_per_s_per_gpu = result.top.front().time.tokens_per_s_per_gpu;
  } else {
    family.reason = main_reason(result);
    family.least_bytes = result.plans_distinct > 0 ? result.smallest_price.allocated_bytes : 0;
  }
  return result.plans_priced;
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

std::vector<PlanFamily> plan_families(const Job& job, const SearchSpace& space,
                                      const std::vector<FamilyAxis>& axes,
                                      const SearchOptions& options) {
  SearchOptions one = options;
  one.top = 1;
  one.cuts = Cuts::kOverLimit;  // a family's counts are of all its plans
  one.progress = nullptr;       // of parts
  PriceTables tables(job, options.threads);
  const PlanSpace plans = plan_space(job, space);
  const SettledRules rules(job, plans, Twins::kIn);
  const WalkTask walk = {.job = job,
                         .rules = rules,
                         .options = one,
                         .tables = tables,
                         .limit_bytes = memory_limit_bytes(job.cluster, one.rule()),
                         .card_bytes = card_bytes(job)};
  FamilyTask task = {.walk = walk, .axes = axes, .parts = {}};
  for (const FamilyAxis& axis : axes) {
    std::vector<SearchSpace>& parts = task.parts.emplace_back();
    for (std::size_t value = 0; value < axis.values.size(); ++value) {
      parts.push_back(axis.only(space, value));
    }
  }
  // The families of an axis are the space once more.
  ProgressReporter reporter(options, num_plans(plans) * (1 + std::ssize(axes)));
  const Tallies tallies = count_all(task, reporter);
  Replays replays(walk);
  replays.replay_first(tallies);
  std::vector<PlanFamily> all;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    std::vector<PlanFamily> families;
    for (std::size_t value = 0; value < axes[axis].values.size(); ++value) {
      const SearchSpace& part = task.parts[axis][value];
      PlanFamily& family = families.emplace_back();
      family.axis = axes[axis].name;
      family.value = axes[axis].values[value];
      family.plans = num_plans(plan_space(job, part));
      const bool has_fitting = find_best(walk, tallies[axis][value], replays, family);
      const std::int64_t priced = has_fitting ? 0 : search_alone(walk, part, family);
      reporter.add(family.plans, priced);
    }
    for (std::size_t value = 0; value < families.size(); ++value) {
      if (families[value].fitting == 0) {
        families[value].nearest = nearest_fitting(families, value);
      }
    }
    all.insert(all.end(), families.begin(), families.end());
  }
  reporter.finish();
  return all;
}

}  // namespace shardplan
