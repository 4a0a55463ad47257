#include "search/questions/advise.h"

#include <algorithm>
#include <optional>

#include "search/walk/parallel.h"

namespace shardplan {
namespace {

constexpr double kFaster = 1.001;      // less is noise of the model
constexpr double kPairsBeat = 1.01;    // two changes must be worth more than one
constexpr std::size_t kPairsKept = 4;  // estimated for every pair that is shown

struct AdviceTask {
  const Job& job;
  const Plan& plan;
  const std::vector<PlanEdit>& edits;
  const AdviceOptions& options;
};

struct Changed {
  std::vector<std::size_t> edits;
  Job job;
  Plan plan;
};

bool keeps_rule(const Job& job, const MemoryEstimate& memory, const AdviceOptions& options) {
  return memory.fit != Fit::kDoesNotFit && (options.rule == FitRule::kVerdict ||
                                            check_rule(job, memory, options.share.rule()).kept());
}

JudgedPlan judge(const Job& job, const Plan& plan, const AdviceOptions& options) {
  JudgedPlan judged = {.job = job, .plan = plan, .memory = {}, .time = {}};
  judged.memory = estimate_memory(job, plan);
  judged.time = estimate_step_time(job, plan);
  judged.fits = keeps_rule(job, judged.memory, options);
  return judged;
}

// The bytes that advice speaks of: those that the rule weighs.
MemoryBasis basis_of(const AdviceOptions& options) {
  return options.rule == FitRule::kVerdict ? MemoryBasis::kDeviceUsed : options.share.basis;
}

std::optional<Changed> changed_by(const AdviceTask& task, const std::vector<std::size_t>& chosen) {
  Changed changed = {.edits = chosen, .job = task.job, .plan = task.plan};
  for (const std::size_t edit : chosen) { task.edits[edit].apply(changed.job, changed.plan); }
  if (first_broken_rule(changed.job, changed.plan) != nullptr) {
    return std::nullopt;
  }
  return changed;
}

Advice advice_of(const Changed& changed, const AdviceResult& result, const AdviceOptions& options) {
  Advice advice = {.edits = changed.edits, .changed = judge(changed.job, changed.plan, options)};
  if (result.base_valid) {
    const MemoryBasis basis = basis_of(options);
    advice.freed_bytes =
        basis_bytes(result.base.memory, basis) - basis_bytes(advice.changed.memory, basis);
    advice.speed_ratio =
        advice.changed.time.tokens_per_s_per_gpu / result.base.time.tokens_per_s_per_gpu;
  }
  return advice;
}

bool helps(const Advice& advice, const AdviceResult& result, AdviceGoal goal) {
  const bool reaches_goal =
      goal == AdviceGoal::kFaster ? advice.speed_ratio > kFaster : advice.freed_bytes > 0;
  return advice.changed.fits && (!result.base_valid || !result.base.fits || reaches_goal);
}

// Nothing new: one of the same fields, or of fewer of them, gives the same.
bool repeats(const Advice& advice, const Advice& before, const std::vector<PlanEdit>& edits) {
  const auto changes_its_field = [&](std::size_t edit) {
    return std::ranges::any_of(
        advice.edits, [&](std::size_t own) { return edits[own].field == edits[edit].field; });
  };
  return advice.freed_bytes == before.freed_bytes &&
         advice.changed.time.total_s == before.changed.time.total_s &&
         std::ranges::all_of(before.edits, changes_its_field);
}

void add_if_new(std::vector<Advice>& list, Advice advice, const AdviceTask& task) {
  if (std::ranges::none_of(
          list, [&](const Advice& before) { return repeats(advice, before, task.edits); })) {
    list.push_back(std::move(advice));
  }
}

std::vector<Advice> without_repeats(std::vector<Advice> list, const AdviceTask& task) {
  std::vector<Advice> kept;
  for (Advice& advice : list) { add_if_new(kept, std::move(advice), task); }
  return kept;
}

bool is_better(const Advice& left, const Advice& right) {
  const double left_speed = left.changed.time.tokens_per_s_per_gpu;
  const double right_speed = right.changed.time.tokens_per_s_per_gpu;
  return left_speed != right_speed ? left_speed > right_speed
                                   : left.freed_bytes > right.freed_bytes;
}

std::vector<Advice> all_advice(const std::vector<Changed>& changes, const AdviceResult& result,
                               const AdviceOptions& options) {
  std::vector<Advice> advice(changes.size());
  in_parallel(std::ssize(changes), options.share.threads, [&](std::int64_t at, std::size_t) {
    const std::size_t index = static_cast<std::size_t>(at);
    advice[index] = advice_of(changes[index], result, options);
  });
  return advice;
}

// Every pair of valid edits of different fields, with the speed that a price gives it.
struct PricedPair {
  Changed changed;
  Price price;
};

std::vector<PricedPair> priced_pairs(AdviceResult& result, const AdviceTask& task) {
  const std::vector<PlanEdit>& edits = task.edits;
  std::vector<std::vector<std::size_t>> pairs;
  for (std::size_t i = 0; i < edits.size(); ++i) {
    for (std::size_t j = i + 1; j < edits.size(); ++j) {
      if (edits[i].is_next && edits[j].is_next && edits[i].field != edits[j].field) {
        pairs.push_back({i, j});
      }
    }
  }
  std::vector<std::optional<PricedPair>> priced(pairs.size());
  in_parallel(std::ssize(pairs), task.options.share.threads, [&](std::int64_t at, std::size_t) {
    const std::size_t index = static_cast<std::size_t>(at);
    if (const std::optional<Changed> changed = changed_by(task, pairs[index])) {
      PriceTable table = build_price_table(changed->job);
      priced[index] = PricedPair{.changed = *changed, .price = price(table, changed->plan)};
    }
  });
  std::vector<PricedPair> valid;
  for (std::optional<PricedPair>& pair : priced) {
    ++result.pairs_tried;
    result.pairs_invalid += pair ? 0 : 1;
    if (pair) {
      valid.push_back(std::move(*pair));
    }
  }
  return valid;
}

// Whether a price, whose allocated bytes are the least that any basis counts, lets a pair fit.
bool may_fit(const PricedPair& pair, const AdviceOptions& options) {
  const Job& job = pair.changed.job;
  return pair.price.device_least_bytes <= card_bytes(job) &&
         (options.rule == FitRule::kVerdict ||
          pair.price.allocated_bytes <= memory_limit_bytes(job.cluster, options.share.rule()));
}

// Pairs that may fit, the fastest first; estimated in small rounds until enough of them help.
void find_pairs(AdviceResult& result, std::vector<PricedPair> pairs, double least_speed,
                const AdviceTask& task) {
  const AdviceOptions& options = task.options;
  std::erase_if(pairs, [&](const PricedPair& pair) {
    return pair.price.tokens_per_s_per_gpu <= least_speed || !may_fit(pair, options);
  });
  std::ranges::stable_sort(pairs, [](const PricedPair& left, const PricedPair& right) {
    return left.price.tokens_per_s_per_gpu > right.price.tokens_per_s_per_gpu;
  });
  const std::size_t most = static_cast<std::size_t>(options.top);
  const std::size_t last = std::min(pairs.size(), kPairsKept * most);
  for (std::size_t first = 0; first < last && result.pairs.size() < most; first += most) {
    std::vector<Changed> round;
    for (std::size_t at = first; at < std::min(first + most, last); ++at) {
      round.push_back(pairs[at].changed);
    }
    for (Advice& advice : all_advice(round, result, options)) {
      if (helps(advice, result, options.goal) && result.pairs.size() < most) {
        add_if_new(result.pairs, std::move(advice), task);
      } else if (!advice.changed.fits) {
        result.nearest.push_back(std::move(advice));
      }
    }
  }
  std::ranges::stable_sort(result.pairs, is_better);
}

// Where nothing fits: the pairs with the least memory that a price knows.
void add_smallest_pairs(AdviceResult& result, std::vector<PricedPair> pairs,
                        const AdviceTask& task) {
  const AdviceOptions& options = task.options;
  std::ranges::stable_sort(pairs, {},
                           [](const PricedPair& pair) { return pair.price.allocated_bytes; });
  std::vector<Changed> least;
  for (std::size_t at = 0; at < std::min(pairs.size(), static_cast<std::size_t>(options.top));
       ++at) {
    least.push_back(pairs[at].changed);
  }
  for (Advice& advice : all_advice(least, result, options)) {
    add_if_new(helps(advice, result, options.goal) ? result.pairs : result.nearest,
               std::move(advice), task);
  }
  std::ranges::stable_sort(result.pairs, is_better);
}

void keep(std::vector<Advice>& advice, std::int64_t most) {
  if (std::ssize(advice) > most) {
    advice.erase(advice.begin() + most, advice.end());
  }
}

void find_singles(AdviceResult& result, const AdviceTask& task) {
  const AdviceOptions& options = task.options;
  std::vector<Changed> singles;
  for (std::size_t edit = 0; edit < task.edits.size(); ++edit) {
    const std::optional<Changed> changed = changed_by(task, {edit});
    ++result.singles_tried;
    result.singles_invalid += changed ? 0 : 1;
    if (changed) {
      singles.push_back(*changed);
    }
  }
  for (Advice& advice : all_advice(singles, result, options)) {
    if (helps(advice, result, options.goal)) {
      result.singles.push_back(std::move(advice));
    } else if (!advice.changed.fits) {
      result.nearest.push_back(std::move(advice));
    }
  }
  std::ranges::stable_sort(result.singles, is_better);
  result.singles = without_repeats(std::move(result.singles), task);
}

}  // namespace

AdviceResult advise(const Job& job, const Plan& plan, const std::vector<PlanEdit>& edits,
                    const AdviceOptions& options) {
  AdviceResult result;
  result.base_valid = first_broken_rule(job, plan) == nullptr;
  result.base = result.base_valid ? judge(job, plan, options)
                                  : JudgedPlan{.job = job, .plan = plan, .memory = {}, .time = {}};
  const AdviceTask task = {.job = job, .plan = plan, .edits = edits, .options = options};
  find_singles(result, task);
  double least_speed = 0;
  if (!result.singles.empty()) {
    least_speed = kPairsBeat * result.singles.front().changed.time.tokens_per_s_per_gpu;
  } else if (result.base_valid && result.base.fits && options.goal == AdviceGoal::kFaster) {
    least_speed = kFaster * result.base.time.tokens_per_s_per_gpu;
  }
  const std::vector<PricedPair> pairs = priced_pairs(result, task);
  find_pairs(result, pairs, least_speed, task);
  const bool fits_already = result.base_valid && result.base.fits;
  if (result.singles.empty() && result.pairs.empty() && !fits_already) {
    add_smallest_pairs(result, pairs, task);
  }
  const bool nothing = result.singles.empty() && result.pairs.empty() && !fits_already;
  if (!nothing) {
    result.nearest.clear();
  }
  std::erase_if(result.nearest,
                [&](const Advice& advice) { return result.base_valid && advice.freed_bytes <= 0; });
  std::ranges::stable_sort(result.nearest, std::ranges::greater(), &Advice::freed_bytes);
  result.nearest = without_repeats(std::move(result.nearest), task);
  keep(result.nearest, options.top);
  keep(result.singles, options.top);
  return result;
}

}  // namespace shardplan
