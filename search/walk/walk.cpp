#include "search/walk/walk.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "search/walk/branches.h"
#include "search/walk/parallel.h"

namespace shardplan {

namespace {

constexpr std::size_t kFirstRound = 8;  // branches; every later round has twice as many, up to
constexpr std::size_t kLongestRound = 512;

// What one branch adds.
struct Harvest {
  std::array<std::int64_t, kNumBounds> cut{};
  std::int64_t priced = 0;
  std::int64_t fitting = 0;
  std::int64_t undecided = 0;
  std::vector<Candidate> top;
  std::vector<Candidate> front;
  std::vector<Candidate> undecided_first;
  std::optional<Candidate> smallest;
};

std::optional<Candidate> smaller(const std::optional<Candidate>& one,
                                 const std::optional<Candidate>& other, MemoryBasis basis) {
  if (!one || !other) {
    return one ? one : other;
  }
  const auto order = [basis](const Candidate& of) {
    return std::pair(upper_basis_bytes(of.price, basis), of.index);
  };
  return order(*one) < order(*other) ? one : other;
}

Best empty_top(const WalkTask& task) {
  return Best(task.num_kept(), task.options.distinct ? KeptPlans::kOnePerFamily : KeptPlans::kAll);
}

// One thread's tools, and the branch that it is in.
class Walker {
 public:
  Walker(const WalkTask& task, std::size_t thread)
      : task_(task),
        thread_(thread),
        table_(task.tables.of(thread)),
        bounds_(task.job, task.rules, std::min(task.limit_bytes, task.card_bytes), table_),
        census_(task.rules) {}

  // Floors of a branch. Those without plans come last, and are not timed.
  void set_time_floor(Branch& branch, std::size_t depth) {
    const Prefix prefix = task_.rules.prefix_at(branch.index, depth);
    branch.floor = std::numeric_limits<double>::infinity();
    if (census_.distinct_below(prefix) > 0) {
      const double known_s = task_.tables.floors().step_time_s(prefix.plan);
      const bool is_slow =
          known_s > 0 && bounds_.tokens_per_s(known_s) < task_.options.least_tokens_per_s_per_gpu;
      branch.time = is_slow ? TimeFloor{known_s, known_s} : bounds_.time(prefix);
      branch.floor = branch.time.step_time_s;
    }
  }
  // Of the memory floor what is known at once, for it decides nothing but the order.
  double first_allocated_floor(std::int64_t index, std::size_t depth) {
    const Prefix prefix = task_.rules.prefix_at(index, depth);
    return census_.distinct_below(prefix) > 0
               ? static_cast<double>(bounds_.allocated_floor(prefix, 0))
               : std::numeric_limits<double>::infinity();
  }

  Harvest walk(const Branch& branch, std::size_t depth, const WalkResult& before,
               const std::optional<Candidate>& behind) {
    harvest_ = {};
    answers_ = &before.answers;
    own_.reset();
    undecided_ = before.undecided_first;
    behind_ = &behind;
    Prefix prefix = task_.rules.prefix_at(branch.index, depth);
    descend(prefix, &branch.time);
    gather(branch.index, task_.rules.plans_below(depth));
    return std::move(harvest_);
  }

  // Returns how many plans it has priced.
  std::int64_t visit_all(const Branch& branch, std::size_t depth, const Visit& visit) {
    harvest_ = {};
    Prefix prefix = task_.rules.prefix_at(branch.index, depth);
    descend_to_all(prefix, visit);
    return harvest_.priced;
  }

  Harvest least_memory(std::int64_t index, std::size_t depth,
                       const std::optional<Candidate>& before) {
    harvest_ = {};
    harvest_.smallest = before;
    Prefix prefix = task_.rules.prefix_at(index, depth);
    descend_to_smallest(prefix);
    return std::move(harvest_);
  }

 private:
  template <class Visit>
  void for_values(Prefix& prefix, std::size_t axis, const Visit& visit) {
    const std::size_t depth = prefix.depth;
    const std::int64_t index = prefix.index;
    const Verdict distinct = task_.rules.distinct();
    for (std::int64_t value = 0; value < task_.rules.size(axis); ++value) {
      task_.rules.choose(axis, value, prefix);
      if (task_.rules.settle(axis, prefix, distinct) == distinct) {
        visit();
      }
      prefix.depth = depth;
      prefix.index = index;
    }
  }

  // `known`: the prefix's time floor.
  void descend(Prefix& prefix, const TimeFloor* known = nullptr) {
    const std::size_t axis = task_.rules.next_axis(prefix.depth);
    if (axis == kNumAxes) {
      weigh(prefix);
      return;
    }
    if (task_.options.cuts != Cuts::kNone && bounds_.has(prefix.depth)) {
      const std::int64_t plans = census_.distinct_below(prefix);
      if (plans == 0) {
        return;
      }
      if (const std::optional<Bound> bound = bound_of(prefix, known)) {
        harvest_.cut[static_cast<std::size_t>(*bound)] += plans;
        return;
      }
    }
    for_values(prefix, axis, [&] { descend(prefix); });
  }

  std::optional<Bound> bound_of(const Prefix& prefix, const TimeFloor* known) {
    return task_.options.cuts == Cuts::kAll ? bounds_.cuts(prefix, *answers_, known)
                                            : bounds_.over_limit(prefix);
  }

  // Of a prefix that has chosen all axes.
  Candidate candidate_at(const Prefix& prefix) {
    return {.index = prefix.index,
            .price = price(table_, prefix.plan),
            .family = family_of(prefix.plan)};
  }

  void weigh(const Prefix& prefix) {
    const Candidate candidate = candidate_at(prefix);
    ++harvest_.priced;
    if (candidate.price.device_least_bytes > task_.card_bytes ||
        task_.over_card.contains(candidate.index)) {
      return;
    }
    if (upper_basis_bytes(candidate.price, task_.options.basis) <= task_.limit_bytes) {
      ++harvest_.fitting;
      if (answers_->top.admits(candidate) ||
          (answers_->wants_front && answers_->front.admits(candidate))) {
        offer(candidate);
      }
    } else if (candidate.price.allocated_bytes <= task_.limit_bytes) {
      ++harvest_.undecided;
      if (answers_->top.admits(candidate) && (!*behind_ || is_better(**behind_, candidate))) {
        undecided_->offer(candidate);
      }
    }
  }

  // The answers of earlier rounds are shared and stay as they are; the first that a branch adds
  // makes a copy of them.
  void offer(const Candidate& candidate) {
    if (!own_) {
      own_ = *answers_;
      answers_ = &*own_;
    }
    own_->top.offer(candidate);
    if (own_->wants_front) {
      own_->front.offer(candidate);
    }
  }

  void gather(std::int64_t first, std::int64_t plans) {
    const auto keep = [&](const std::vector<Candidate>& from, std::vector<Candidate>& to) {
      std::ranges::copy_if(from, std::back_inserter(to), [&](const Candidate& candidate) {
        return candidate.index >= first && candidate.index < first + plans;
      });
    };
    if (own_) {
      keep(own_->top.candidates(), harvest_.top);
      keep(own_->front.candidates(), harvest_.front);
    }
    keep(undecided_->candidates(), harvest_.undecided_first);
  }

  void descend_to_all(Prefix& prefix, const Visit& visit) {
    const std::size_t axis = task_.rules.next_axis(prefix.depth);
    if (axis == kNumAxes) {
      const Candidate candidate = candidate_at(prefix);
      ++harvest_.priced;
      if (candidate.price.device_least_bytes <= task_.card_bytes &&
          candidate.price.allocated_bytes <= task_.limit_bytes) {
        visit(prefix.plan, candidate, thread_);
      }
      return;
    }
    if (bounds_.has(prefix.depth) &&
        (census_.distinct_below(prefix) == 0 || bounds_.over_limit(prefix))) {
      return;
    }
    for_values(prefix, axis, [&] { descend_to_all(prefix, visit); });
  }

  void descend_to_smallest(Prefix& prefix) {
    const std::size_t axis = task_.rules.next_axis(prefix.depth);
    if (axis == kNumAxes) {
      harvest_.smallest = smaller(harvest_.smallest, candidate_at(prefix), task_.options.basis);
      return;
    }
    if (harvest_.smallest && bounds_.has(prefix.depth)) {
      if (census_.distinct_below(prefix) == 0) {
        return;
      }
      const Candidate& smallest = *harvest_.smallest;
      const std::int64_t bytes = upper_basis_bytes(smallest.price, task_.options.basis);
      if (std::pair(bounds_.allocated_floor(prefix, bytes), prefix.index) >
          std::pair(bytes, smallest.index)) {
        return;
      }
    }
    for_values(prefix, axis, [&] { descend_to_smallest(prefix); });
  }

  const WalkTask& task_;
  std::size_t thread_;
  PriceTable& table_;
  Bounds bounds_;
  Census census_;
  Harvest harvest_;
  const Answers* answers_ = nullptr;
  std::optional<Answers> own_;
  std::optional<Best> undecided_;
  const std::optional<Candidate>* behind_ = nullptr;
};

// A walker for every thread that comes.
class Walkers {
 public:
  explicit Walkers(const WalkTask& task)
      : task_(task), walkers_(static_cast<std::size_t>(num_threads(task.options.threads))) {}
  // Calls visit(walker, at) for every number below `count`, in any order, on all threads.
  template <class Visit>
  void for_all(std::size_t count, const Visit& visit) {
    in_parallel(static_cast<std::int64_t>(count), task_.options.threads,
                [&](std::int64_t at, std::size_t thread) {
                  std::optional<Walker>& walker = walkers_[thread];
                  if (!walker) {
                    walker.emplace(task_, thread);
                  }
                  visit(*walker, static_cast<std::size_t>(at));
                });
  }

 private:
  const WalkTask& task_;
  std::vector<std::optional<Walker>> walkers_;
};

void join(const Harvest& harvest, WalkResult& result) {
  for (std::size_t bound = 0; bound < kNumBounds; ++bound) {
    result.cut[bound] += harvest.cut[bound];
  }
  result.priced += harvest.priced;
  result.fitting += harvest.fitting;
  result.undecided += harvest.undecided;
  for (const Candidate& candidate : harvest.top) { result.answers.top.offer(candidate); }
  for (const Candidate& candidate : harvest.front) { result.answers.front.offer(candidate); }
  for (const Candidate& candidate : harvest.undecided_first) {
    result.undecided_first.offer(candidate);
  }
}

// Visits all branches in rounds; `visit` gives a branch's harvest, `take` joins those of a round.
template <class Visit, class Take>
void in_rounds(Walkers& walkers, const std::vector<Branch>& branches, const Visit& visit,
               const Take& take) {
  std::size_t length = kFirstRound;
  for (std::size_t first = 0; first < branches.size();) {
    std::vector<Harvest> round(std::min(length, branches.size() - first));
    walkers.for_all(round.size(), [&](Walker& walker, std::size_t at) {
      round[at] = visit(walker, branches[first + at]);
    });
    for (const Harvest& harvest : round) { take(harvest); }
    first += round.size();
    length = std::min(2 * length, kLongestRound);
  }
}

// Keeps the floors of the first search, as no branch of a part of its space takes less. A branch
// without plans of its own is left out: others stand for it here, but may be absent from a part.
void remember_floors(const WalkTask& task, const std::vector<Branch>& branches, std::size_t depth) {
  KnownFloors& floors = task.tables.floors();
  if (!floors.is_empty()) {
    return;
  }
  for (const Branch& branch : branches) {
    if (branch.floor < std::numeric_limits<double>::infinity()) {
      floors.add(task.rules.prefix_at(branch.index, depth).plan, branch.floor);
    }
  }
}

}  // namespace

std::int64_t upper_basis_bytes(const Price& price, MemoryBasis basis) {
  return basis == MemoryBasis::kAllocated ? price.allocated_bytes : price.device_used_bytes;
}

WalkResult walk(const WalkTask& task, const std::optional<Candidate>& behind) {
  WalkResult result = {
      .answers = {.top = empty_top(task),
                  .front = {},
                  .wants_front = task.options.pareto,
                  .least_tokens_per_s_per_gpu = task.options.least_tokens_per_s_per_gpu},
      .undecided_first = Best(kMaxUndecided)};
  Walkers walkers(task);
  const std::size_t depth = branch_depth(task.rules);
  std::vector<Branch> branches = branches_of(task.rules, depth);
  if (task.options.cuts == Cuts::kAll) {
    const std::vector<std::span<Branch>> neighbours = neighbours_of(task.rules, branches);
    walkers.for_all(neighbours.size(), [&](Walker& walker, std::size_t at) {
      for (Branch& branch : neighbours[at]) {
        if (!task.options.is_stopped()) {
          walker.set_time_floor(branch, depth);
        }
      }
    });
    remember_floors(task, branches, depth);
    sort_by_floor(branches);
  }
  ProgressReporter reporter(task.options, task.num_distinct);
  in_rounds(
      walkers, branches,
      [&](Walker& walker, const Branch& branch) {
        if (task.options.is_stopped()) {
          return Harvest{};
        }
        Harvest harvest = walker.walk(branch, depth, result, behind);
        reporter.add(harvest.priced + std::reduce(harvest.cut.begin(), harvest.cut.end()),
                     harvest.priced);
        return harvest;
      },
      [&](const Harvest& harvest) { join(harvest, result); });
  reporter.finish();
  return result;
}

void visit_plans(const WalkTask& task, const Visit& visit, ProgressReporter& reporter) {
  Walkers walkers(task);
  const std::size_t depth = branch_depth(task.rules);
  std::vector<Branch> branches = branches_of(task.rules, depth);
  const std::vector<std::span<Branch>> neighbours = neighbours_of(task.rules, branches);
  const std::int64_t plans = task.rules.plans_below(depth);
  reporter.add(task.rules.plans_below(0) - std::ssize(branches) * plans, 0);  // broken above
  walkers.for_all(neighbours.size(), [&](Walker& walker, std::size_t at) {
    for (const Branch& branch : neighbours[at]) {
      reporter.add(plans, walker.visit_all(branch, depth, visit));
    }
  });
}

std::optional<Candidate> smallest_plan(const WalkTask& task) {
  std::optional<Candidate> smallest;
  Walkers walkers(task);
  const std::size_t depth = branch_depth(task.rules);
  std::vector<Branch> branches = branches_of(task.rules, depth);
  const std::vector<std::span<Branch>> neighbours = neighbours_of(task.rules, branches);
  walkers.for_all(neighbours.size(), [&](Walker& walker, std::size_t at) {
    for (Branch& branch : neighbours[at]) {
      branch.floor = walker.first_allocated_floor(branch.index, depth);
    }
  });
  sort_by_floor(branches);
  in_rounds(
      walkers, branches,
      [&](Walker& walker, const Branch& branch) {
        return walker.least_memory(branch.index, depth, smallest);
      },
      [&](const Harvest& harvest) {
        smallest = smaller(smallest, harvest.smallest, task.options.basis);
      });
  return smallest;
}

}  // namespace shardplan
