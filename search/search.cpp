#include "search/search.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "search/rank.h"
#include "search/rules.h"
#include "search/space.h"

namespace shardplan {

namespace {

constexpr std::int64_t kPlansPerTask = 4096;  // one thread's share at a time
constexpr std::int64_t kPricesPerTable =
    8192;                                      // then a fresh one: it keeps pieces of all it priced
constexpr std::int64_t kReplaysPerRound = 16;  // fixed: the result must not know the threads

// What one thread has seen of the space. Merging in any order gives the same.
struct Tally {
  std::vector<std::int64_t> broken;    // by rule of the profile
  std::vector<std::int64_t> repeated;  // by equivalence rule
  std::int64_t priced = 0;
  std::int64_t fitting = 0;                 // by the upper bound of the basis
  std::int64_t undecided = 0;               // between the bounds
  Best best;                                // of those fitting
  std::vector<Candidate> faster_undecided;  // those that `best` would admit
  std::optional<Candidate> smallest;
};

struct Search {
  const Job& job;
  const SearchOptions& options;
  const PlanSpace space;
  const std::int64_t plans;
  const std::int64_t limit_bytes;
};

Tally empty_tally(const Search& search) {
  return {.broken = std::vector<std::int64_t>(validity_rules(search.job.profile).size()),
          .repeated = std::vector<std::int64_t>(equivalence_rules().size()),
          .best = Best(search.options.top),
          .faster_undecided = {},
          .smallest = std::nullopt};
}

// allocated <= required <= reserved <= device_used, so that the first bounds every basis from below
// and the priced device_used, itself an upper bound, bounds it from above.
std::int64_t upper_basis_bytes(const Price& price, MemoryBasis basis) {
  return basis == MemoryBasis::kAllocated ? price.allocated_bytes : price.device_used_bytes;
}

void keep_smallest(std::optional<Candidate>& smallest, const Candidate& candidate,
                   MemoryBasis basis) {
  const auto order = [&](const Candidate& of) {
    return std::pair(upper_basis_bytes(of.price, basis), of.index);
  };
  if (!smallest || order(candidate) < order(*smallest)) {
    smallest = candidate;
  }
}

void weigh(const Search& search, const Candidate& candidate, Tally& tally) {
  ++tally.priced;
  keep_smallest(tally.smallest, candidate, search.options.basis);
  if (upper_basis_bytes(candidate.price, search.options.basis) <= search.limit_bytes) {
    ++tally.fitting;
    tally.best.offer(candidate);
  } else if (candidate.price.allocated_bytes <= search.limit_bytes) {
    ++tally.undecided;
    if (tally.best.admits(candidate)) {
      tally.faster_undecided.push_back(candidate);
    }
  }
}

void visit(const Search& search, std::int64_t first, std::int64_t last, PriceTable& table,
           Tally& tally) {
  const std::span<const ValidityRule> rules = validity_rules(search.job.profile);
  const std::span<const EquivalenceRule> equivalences = equivalence_rules();
  PlanCursor cursor(search.space, first);
  for (std::int64_t index = first; index < last; ++index, cursor.advance()) {
    const Plan& plan = cursor.plan();
    if (const ValidityRule* rule = first_broken_rule(search.job, plan)) {
      ++tally.broken[static_cast<std::size_t>(rule - rules.data())];
    } else if (const EquivalenceRule* twin =
                   first_equivalence(search.job, search.space.values, plan)) {
      ++tally.repeated[static_cast<std::size_t>(twin - equivalences.data())];
    } else {
      weigh(search, {.index = index, .price = price(table, plan)}, tally);
    }
  }
}

void merge(const Search& search, const Tally& part, Tally& whole) {
  std::ranges::transform(part.broken, whole.broken, whole.broken.begin(), std::plus());
  std::ranges::transform(part.repeated, whole.repeated, whole.repeated.begin(), std::plus());
  whole.priced += part.priced;
  whole.fitting += part.fitting;
  whole.undecided += part.undecided;
  for (const Candidate& candidate : part.best.candidates()) { whole.best.offer(candidate); }
  whole.faster_undecided.insert(whole.faster_undecided.end(), part.faster_undecided.begin(),
                                part.faster_undecided.end());
  if (part.smallest) {
    keep_smallest(whole.smallest, *part.smallest, search.options.basis);
  }
}

int num_threads(const Search& search) {
  return search.options.threads > 0 ? static_cast<int>(search.options.threads)
                                    : omp_get_max_threads();
}

Tally visit_all(const Search& search) {
  Tally whole = empty_tally(search);
  std::atomic<std::int64_t> next = 0;
  std::exception_ptr failure;  // an exception must not leave a parallel region
#pragma omp parallel num_threads(num_threads(search))
  try {
    Tally part = empty_tally(search);
    PriceTable table = build_price_table(search.job);
    std::int64_t priced_before_table = 0;
    for (std::int64_t first = next.fetch_add(kPlansPerTask); first < search.plans;
         first = next.fetch_add(kPlansPerTask)) {
      if (part.priced - priced_before_table > kPricesPerTable) {
        table = build_price_table(search.job);
        priced_before_table = part.priced;
      }
      visit(search, first, std::min(first + kPlansPerTask, search.plans), table, part);
    }
#pragma omp critical
    merge(search, part, whole);
  } catch (...) {
#pragma omp critical
    failure = std::current_exception();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  return whole;
}

RankedPlan full_estimate(const Search& search, const Candidate& candidate) {
  const Job& job = search.job;
  RankedPlan ranked = {.plan = plan_at(search.space, candidate.index),
                       .price = candidate.price,
                       .memory = {},
                       .time = {}};
  ranked.memory = estimate_memory(job, ranked.plan);
  ranked.time = estimate_step_time(job, ranked.plan);
  ranked.exceeds_device =
      basis_bytes(ranked.memory, MemoryBasis::kDeviceUsed) > device_capacity_bytes(job.cluster);
  return ranked;
}

std::vector<RankedPlan> full_estimates(const Search& search,
                                       std::span<const Candidate> candidates) {
  std::vector<RankedPlan> ranked(candidates.size());
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads(search))
  for (std::size_t at = 0; at < candidates.size(); ++at) {
    try {
      ranked[at] = full_estimate(search, candidates[at]);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  return ranked;
}

// Walks the candidates from the fastest on until `top` of them are known to fit; the allocator is
// replayed for those whose bounds leave it open, and what it says is counted.
std::vector<RankedPlan> choose_top(const Search& search, Tally& tally) {
  std::vector<Candidate> candidates = tally.best.candidates();
  candidates.insert(candidates.end(), tally.faster_undecided.begin(), tally.faster_undecided.end());
  std::ranges::sort(candidates, is_better);
  const std::int64_t num_candidates = static_cast<std::int64_t>(candidates.size());
  std::vector<RankedPlan> top;
  for (std::int64_t first = 0; first < num_candidates; first += kReplaysPerRound) {
    const std::int64_t length = std::min(kReplaysPerRound, num_candidates - first);
    const std::span<const Candidate> round(candidates.data() + first,
                                           static_cast<std::size_t>(length));
    for (RankedPlan& ranked : full_estimates(search, round)) {
      if (static_cast<std::int64_t>(top.size()) == search.options.top) {
        return top;
      }
      const MemoryBasis basis = search.options.basis;
      const bool was_open = upper_basis_bytes(ranked.price, basis) > search.limit_bytes;
      const bool fits = !was_open || basis_bytes(ranked.memory, basis) <= search.limit_bytes;
      tally.undecided -= was_open ? 1 : 0;
      tally.fitting += was_open && fits ? 1 : 0;
      if (fits) {
        top.push_back(std::move(ranked));
      }
    }
  }
  return top;
}

std::vector<RuleCount> pruned_counts(const Search& search, const Tally& tally) {
  std::vector<RuleCount> counts;
  const std::span<const ValidityRule> rules = validity_rules(search.job.profile);
  for (std::size_t rule = 0; rule < rules.size(); ++rule) {
    const std::string name(rules[rule].name);
    counts.push_back({.rule = name.starts_with("unsupported") ? name : "invalid: " + name,
                      .plans = tally.broken[rule]});
  }
  const std::span<const EquivalenceRule> equivalences = equivalence_rules();
  for (std::size_t rule = 0; rule < equivalences.size(); ++rule) {
    counts.push_back({.rule = "equivalent: " + std::string(equivalences[rule].name),
                      .plans = tally.repeated[rule]});
  }
  counts.push_back(
      {.rule = "does_not_fit", .plans = tally.priced - tally.fitting - tally.undecided});
  counts.push_back({.rule = "undecided", .plans = tally.undecided});
  std::erase_if(counts, [](const RuleCount& count) { return count.plans == 0; });
  return counts;
}

}  // namespace

std::int64_t memory_limit_bytes(const ClusterSpec& cluster, const SearchOptions& options) {
  const std::int64_t capacity = options.basis == MemoryBasis::kAllocated
                                    ? nominal_capacity_bytes(cluster)
                                    : device_capacity_bytes(cluster);
  return static_cast<std::int64_t>(
      std::floor(options.memory_threshold * static_cast<double>(capacity)));
}

std::int64_t basis_bytes(const MemoryEstimate& memory, MemoryBasis basis) {
  std::int64_t bytes = 0;
  for (const StageMemory& stage : memory.stages) {
    switch (basis) {
      case MemoryBasis::kAllocated: bytes = std::max(bytes, stage.allocated_bytes); break;
      case MemoryBasis::kReserved: bytes = std::max(bytes, stage.reserved_bytes); break;
      case MemoryBasis::kRequired: bytes = std::max(bytes, stage.required_bytes); break;
      case MemoryBasis::kDeviceUsed: bytes = std::max(bytes, stage.device_used_bytes); break;
    }
  }
  return bytes;
}

SearchResult search_plans(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  PlanSpace plans = plan_space(job, space);
  const std::int64_t plans_in_space = num_plans(plans);
  const Search search = {.job = job,
                         .options = options,
                         .space = std::move(plans),
                         .plans = plans_in_space,
                         .limit_bytes = memory_limit_bytes(job.cluster, options)};
  Tally tally = visit_all(search);
  SearchResult result;
  result.top = choose_top(search, tally);
  result.pruned = pruned_counts(search, tally);
  result.plans_in_space = plans_in_space;
  result.plans_priced = tally.priced;
  result.plans_fitting = tally.fitting;
  if (tally.fitting == 0 && tally.smallest) {
    result.smallest = plan_at(search.space, tally.smallest->index);
    result.smallest_price = tally.smallest->price;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace shardplan
