#include "search/walk/search.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "search/space/census.h"
#include "search/space/rules.h"
#include "search/space/space.h"
#include "search/walk/parallel.h"
#include "search/walk/progress.h"
#include "search/walk/rank.h"
#include "search/walk/walk.h"

namespace shardplan {

namespace {

constexpr std::size_t kCensusDepth = 4;        // prefixes of so many axes are one thread's task
constexpr std::int64_t kReplaysPerRound = 16;  // fixed: the result must not know the threads

Counts count_verdicts(const SettledRules& rules, const SearchOptions& options) {
  const std::size_t verdicts = static_cast<std::size_t>(rules.distinct()) + 1;
  const std::int64_t tasks =
      rules.plans_below(0) == 0 ? 0 : rules.plans_below(0) / rules.plans_below(kCensusDepth);
  const std::size_t threads = static_cast<std::size_t>(num_threads(options.threads));
  std::vector<std::optional<Census>> censuses(threads);
  std::vector<Counts> parts(threads, Counts(verdicts));
  in_parallel(tasks, options.threads, [&](std::int64_t task, std::size_t thread) {
    if (options.is_stopped()) {
      return;
    }
    std::optional<Census>& census = censuses[thread];
    if (!census) {
      census.emplace(rules);
    }
    Prefix prefix = rules.root();
    Verdict verdict = rules.root_verdict();
    const Prefix chosen = rules.prefix_at(task * rules.plans_below(kCensusDepth), kCensusDepth);
    for (std::size_t axis = rules.next_axis(0); axis < kCensusDepth;
         axis = rules.next_axis(axis + 1)) {
      rules.choose(axis, chosen.values[axis], prefix);
      verdict = rules.settle(axis, prefix, verdict);
    }
    prefix.depth = kCensusDepth;
    census->count(std::move(prefix), verdict, parts[thread]);
  });
  Counts counts(verdicts);
  for (const Counts& part : parts) {
    std::ranges::transform(part, counts, counts.begin(), std::plus());
  }
  return counts;
}

// Where no plan is valid: the first of those that get furthest through the rules.
Plan nearest_plan(const SettledRules& rules, const Counts& counts) {
  std::size_t furthest = counts.size() - 1;
  while (counts[furthest] == 0) { --furthest; }
  Census census(rules);
  Prefix prefix = rules.root();
  Verdict verdict = rules.root_verdict();
  for (std::size_t axis = rules.next_axis(0); axis < kNumAxes; axis = rules.next_axis(axis + 1)) {
    for (std::int64_t value = 0; value < rules.size(axis); ++value) {
      Prefix chosen = prefix;
      rules.choose(axis, value, chosen);
      const Verdict settled = rules.settle(axis, chosen, verdict);
      Counts below(counts.size());
      census.count(chosen, settled, below);
      if (below[furthest] > 0) {
        prefix = chosen;
        verdict = settled;
        break;
      }
    }
  }
  return prefix.plan;
}

RankedPlan full_estimate(const WalkTask& task, const Candidate& candidate) {
  const Job& job = task.job;
  RankedPlan ranked = {.plan = plan_at(task.rules.space(), candidate.index),
                       .price = candidate.price,
                       .memory = {},
                       .time = {}};
  ranked.memory = estimate_memory(job, ranked.plan);
  ranked.time = estimate_step_time(job, ranked.plan);
  ranked.exceeds_device = verdict_of(job, ranked.memory, kCardAlone) == MemoryVerdict::kTight;
  return ranked;
}

using EstimatedPlans = std::map<std::int64_t, RankedPlan>;  // by index in the space

// Adds the full estimates of the candidates that have none yet.
void add_estimates(const WalkTask& task, std::span<const Candidate> candidates,
                   EstimatedPlans& estimated) {
  std::vector<const Candidate*> missing;
  for (const Candidate& candidate : candidates) {
    if (!estimated.contains(candidate.index)) {
      missing.push_back(&candidate);
    }
  }
  std::vector<RankedPlan> ranked(missing.size());
  in_parallel(std::ssize(missing), task.options.threads, [&](std::int64_t at, std::size_t) {
    ranked[static_cast<std::size_t>(at)] =
        full_estimate(task, *missing[static_cast<std::size_t>(at)]);
  });
  for (std::size_t at = 0; at < missing.size(); ++at) {
    estimated.emplace(missing[at]->index, std::move(ranked[at]));
  }
}

// The plans shown, and what the walk knew before.
struct Finalists {
  std::vector<RankedPlan> top;
  std::vector<Family> families;  // of `top`
  std::int64_t fitting = 0;
  std::int64_t undecided = 0;
  std::vector<std::int64_t> over_card;  // that the walk took for fitting, by index
};

// Takes candidates, best first, until the top is complete. Their allocators are replayed; what that
// says of the card, and of the basis where bounds leave it open, is counted.
void choose_among(const WalkTask& task, std::span<const Candidate> candidates,
                  EstimatedPlans& estimated, Finalists& chosen, ProgressReporter& reporter) {
  const SearchOptions& options = task.options;
  const auto is_shown = [&](const Candidate& candidate) {
    return options.distinct &&
           std::ranges::find(chosen.families, candidate.family) != chosen.families.end();
  };
  std::vector<Candidate> round;
  for (std::size_t next = 0; next < candidates.size();) {
    const std::int64_t missing = options.top - std::ssize(chosen.top);
    const std::int64_t most = std::min(kReplaysPerRound, missing);
    round.clear();
    for (; next < candidates.size() && std::ssize(round) < most; ++next) {
      if (!is_shown(candidates[next])) {
        round.push_back(candidates[next]);
      }
    }
    add_estimates(task, round, estimated);
    for (const Candidate& candidate : round) {
      const RankedPlan& plan = estimated.at(candidate.index);
      const bool was_open = upper_basis_bytes(candidate.price, options.basis) > task.limit_bytes;
      const bool is_fitting = fits(task.job, plan.memory, options);
      chosen.undecided -= was_open ? 1 : 0;
      chosen.fitting += was_open && is_fitting ? 1 : 0;
      if (!was_open && !is_fitting) {
        chosen.over_card.push_back(candidate.index);
      }
      if (is_fitting && !is_shown(candidate)) {
        chosen.top.push_back(plan);
        chosen.families.push_back(candidate.family);
      }
    }
    reporter.set_estimated(std::ssize(chosen.top));
    if (std::ssize(chosen.top) == options.top) {
      return;
    }
  }
}

// The walk keeps a bounded number of undecided plans. Should none of so many fit, it is walked
// again for those behind them.
Finalists choose_top(const WalkTask& task, const WalkResult& walked, EstimatedPlans& estimated) {
  Finalists chosen = {.top = {},
                      .families = {},
                      .fitting = walked.fitting,
                      .undecided = walked.undecided,
                      .over_card = {}};
  std::optional<Candidate> behind;
  std::vector<Candidate> open = walked.undecided_first.candidates();
  ProgressReporter reporter(
      task.options, task.num_distinct,
      std::min(task.options.top, std::ssize(walked.answers.top.candidates()) + std::ssize(open)));
  while (true) {
    const bool is_complete = std::ssize(open) < kMaxUndecided;
    std::vector<Candidate> candidates = walked.answers.top.candidates();
    std::erase_if(candidates, [&](const Candidate& candidate) {
      return (behind && !is_better(*behind, candidate)) ||
             (!is_complete && is_better(open.back(), candidate));
    });
    candidates.insert(candidates.end(), open.begin(), open.end());
    std::ranges::sort(candidates, is_better);
    choose_among(task, candidates, estimated, chosen, reporter);
    if (is_complete || std::ssize(chosen.top) == task.options.top) {
      reporter.finish();
      return chosen;
    }
    behind = open.back();
    open = walk(task, behind).undecided_first.candidates();
  }
}

// Of the front what the card may not hold is replayed, too.
void check_front(const WalkTask& task, const WalkResult& walked, EstimatedPlans& estimated,
                 Finalists& chosen) {
  std::vector<Candidate> open = walked.answers.front.candidates();
  std::erase_if(open, [&](const Candidate& candidate) {
    return candidate.price.device_used_bytes <= task.card_bytes;
  });
  add_estimates(task, open, estimated);
  for (const Candidate& candidate : open) {
    if (!fits(task.job, estimated.at(candidate.index).memory, task.options)) {
      chosen.over_card.push_back(candidate.index);
    }
  }
}

// The walk cuts by plans that keep the limit. Should the card refuse some of them, it is walked
// again without these, until it refuses none.
std::pair<WalkResult, Finalists> walk_and_choose(WalkTask& task) {
  EstimatedPlans estimated;
  while (true) {
    WalkResult walked = walk(task, std::nullopt);
    Finalists chosen = choose_top(task, walked, estimated);
    check_front(task, walked, estimated, chosen);
    if (chosen.over_card.empty()) {
      return {std::move(walked), std::move(chosen)};
    }
    task.over_card.insert(chosen.over_card.begin(), chosen.over_card.end());
  }
}

std::vector<RuleCount> pruned_counts(const WalkTask& task, const Counts& counts,
                                     const WalkResult& walked, const Finalists& chosen) {
  std::vector<RuleCount> pruned;
  const auto add = [&](const std::string& rule, std::int64_t plans) {
    if (plans > 0) {
      pruned.push_back({.rule = rule, .plans = plans});
    }
  };
  std::size_t verdict = 0;
  for (const ValidityRule& rule : validity_rules(task.job.profile)) {
    const std::string name(rule.name);
    add(name.starts_with("unsupported") ? name : "invalid: " + name, counts[verdict++]);
  }
  for (const EquivalenceRule& rule : equivalence_rules()) {
    add("equivalent: " + std::string(rule.name), counts[verdict++]);
  }
  for (const auto& bound : kBounds) {
    add("cut: " + std::string(bound.name), walked.cut[static_cast<std::size_t>(bound.value)]);
  }
  add("does_not_fit", walked.priced - chosen.fitting - chosen.undecided);
  add("undecided", chosen.undecided);
  return pruned;
}

void group_ties(std::vector<RankedPlan>& top) {
  std::vector<double> speeds;
  speeds.reserve(top.size());
  for (const RankedPlan& ranked : top) { speeds.push_back(ranked.price.tokens_per_s_per_gpu); }
  const std::vector<std::int64_t> groups = tied_groups(speeds);
  for (std::size_t at = 0; at < top.size(); ++at) { top[at].tied_group = groups[at]; }
}

}  // namespace

bool fits(const Job& job, const MemoryEstimate& memory, const SearchOptions& options) {
  const MemoryVerdict verdict = verdict_of(job, memory, options.rule());
  return verdict == MemoryVerdict::kFits ||
         (options.takes_tight && verdict == MemoryVerdict::kTight &&
          check_rule(job, memory, options.rule()).kept());
}

SearchResult search_plans(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  PriceTables tables(job, options.threads);
  return search_plans(job, space, options, tables);
}

SearchResult search_plans(const Job& job, const SearchSpace& space, const SearchOptions& options,
                          PriceTables& tables) {
  const auto start = std::chrono::steady_clock::now();
  const PlanSpace plans = plan_space(job, space);
  if (num_plans(plans) == kUncountable) {
    throw std::logic_error("search_plans: more plans than can be counted");
  }
  const SettledRules rules(job, plans);
  const Counts counts = count_verdicts(rules, options);
  WalkTask task = {.job = job,
                   .rules = rules,
                   .options = options,
                   .tables = tables,
                   .limit_bytes = memory_limit_bytes(job.cluster, options.rule()),
                   .card_bytes = card_bytes(job),
                   .num_distinct = counts.back()};
  auto [walked, chosen] = walk_and_choose(task);
  SearchResult result;
  result.pruned = pruned_counts(task, counts, walked, chosen);
  result.plans_in_space = num_plans(plans);
  result.plans_distinct = counts.back();
  result.plans_priced = walked.priced;
  result.plans_fitting = chosen.fitting;
  result.top = std::move(chosen.top);
  result.was_stopped = options.is_stopped();
  if (result.plans_in_space > 0 && result.plans_distinct == 0 && !result.was_stopped) {
    result.nearest = nearest_plan(rules, counts);
  }
  group_ties(result.top);
  for (const Candidate& candidate : walked.answers.front.candidates()) {
    result.pareto.push_back({.plan = plan_at(plans, candidate.index), .price = candidate.price});
  }
  if (result.plans_fitting == 0 && options.least_tokens_per_s_per_gpu == 0 && !result.was_stopped) {
    if (const std::optional<Candidate> smallest = smallest_plan(task)) {
      result.smallest = plan_at(plans, smallest->index);
      result.smallest_price = smallest->price;
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace shardplan
