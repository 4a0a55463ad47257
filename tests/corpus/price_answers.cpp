// Prices of valid plans in a fixed order from one table, and the floors of branches around them.
#include <cstdint>
#include <random>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "estimator/price/fitting_floor.h"
#include "estimator/price/memory_floor.h"
#include "estimator/price/time_floor.h"
#include "search/space/census.h"
#include "search/space/default_space.h"
#include "search/walk/bounds.h"
#include "search/walk/search.h"
#include "tests/corpus/answer_text.h"
#include "tests/corpus/answers.h"

namespace shardplan {
namespace {

constexpr std::int64_t kTogether = 20;  // prices of one answer

struct PricesQuestion {
  std::string name;
  std::string axes;
  std::int64_t prices = 0;
  std::int64_t floors = 0;
  std::string case_line;
};

PricesQuestion read_prices_question(const std::string& line) {
  PricesQuestion asked;
  std::istringstream words(line);
  words >> asked.name >> asked.axes >> asked.prices >> asked.floors;
  std::getline(words, asked.case_line);
  if (!words || (asked.axes != "default" && asked.axes != "all")) {
    throw std::invalid_argument("not a question about prices: " + line);
  }
  return asked;
}

// Draws valid plans: every run of them starts at a random one and goes on with its neighbours, from
// which most pieces of a price are taken again.
class PlanDraw {
 public:
  explicit PlanDraw(const SettledRules& rules) : rules_(rules) {}

  std::vector<Prefix> plans(std::int64_t count) {
    constexpr std::size_t kRun = 5;
    constexpr int kMostRuns = 10'000;
    std::vector<Prefix> all;
    for (int run = 0; run < kMostRuns && std::ssize(all) < count; ++run) {
      const std::size_t before = all.size();
      Prefix prefix = rules_.root();
      add_below(prefix, before + kRun, all);
    }
    return all;
  }

 private:
  // The values of every axis in turn from a random one on.
  void add_below(Prefix& prefix, std::size_t enough, std::vector<Prefix>& all) {
    const std::size_t axis = rules_.next_axis(prefix.depth);
    if (axis == kNumAxes) {
      all.push_back(prefix);
      return;
    }
    const Prefix before = prefix;
    const std::int64_t size = rules_.size(axis);
    const auto first = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(size));
    for (std::int64_t i = 0; i < size && all.size() < enough; ++i) {
      rules_.choose(axis, (first + i) % size, prefix);
      if (rules_.settle(axis, prefix, rules_.distinct()) == rules_.distinct()) {
        add_below(prefix, enough, all);
      }
      prefix = before;
    }
  }

  const SettledRules& rules_;
  std::mt19937_64 random_{1};
};

void add_sizes(AnswerText& text, const Plan& plan) {
  text.add("tp", plan.tp).add("cp", plan.cp).add("ep", plan.ep).add("etp", plan.etp);
  text.add("pp", plan.pp).add("vpp", plan.vpp).add("zero", plan.zero);
  text.add("micro_batch", plan.micro_batch).add(name_of(plan.schedule));
  text.add(name_of(plan.recompute.granularity)).add(name_of(plan.precision));
}

void take_prices(const PricesQuestion& asked, const Job& job, const std::vector<Prefix>& plans,
                 const TakeAnswer& take) {
  PriceTable table = build_price_table(job);
  for (std::int64_t first = 0; first < std::ssize(plans); first += kTogether) {
    AnswerText text;
    const std::int64_t end = std::min(first + kTogether, std::ssize(plans));
    for (std::int64_t i = first; i < end; ++i) {
      const Prefix& at = plans[static_cast<std::size_t>(i)];
      const Price priced = price(table, at.plan);
      text.add(i).add("index", at.index);
      add_sizes(text, at.plan);
      text.add(priced.allocated_bytes).add(priced.allocated_stage).add(priced.device_used_bytes);
      text.add(priced.device_least_bytes).add(priced.step_time_s);
      text.add(priced.tokens_per_s_per_gpu);
      text.end_line();
    }
    take(asked.name + "/prices " + std::to_string(first) + ".." + std::to_string(end - 1),
         text.text());
  }
}

// From the innermost level of a search to one with all that floors may leave open.
std::vector<PriceFreedom> freedoms(const SearchSpace& space) {
  PriceFreedom state;
  state.zero = space.zero;
  state.dp_replicate = space.dp_replicate;
  state.grad_dtype = space.grad_dtype;
  state.master_dtype = space.master_dtype;
  state.exp_avg_dtype = space.exp_avg_dtype;
  state.exp_avg_sq_dtype = space.exp_avg_sq_dtype;
  state.offload = space.offload;
  PriceFreedom replay = state;
  replay.recompute = space.recompute;
  replay.schedule = space.schedule;
  replay.rank_order = space.rank_order;
  PriceFreedom all = replay;
  all.micro_batch = space.micro_batch;
  all.sequence_parallel = space.sequence_parallel;
  all.cp_method = space.cp_method;
  all.precision = space.precision;
  return {state, replay, all};
}

void add_floors(AnswerText& text, PriceTable& table, const Plan& plan, std::size_t level) {
  constexpr std::int64_t kLimit = std::int64_t{64'000'000'000};
  const MemoryFloor memory = memory_floor(table, plan, level);
  const TimeFloor time = time_floor(table, plan, level);
  text.add(state_floor_bytes(table, plan, level, kLimit)).add(memory.state_bytes);
  text.add(memory.allocated_bytes).add(time.compute_s).add(time.step_time_s);
  if (opens_only_state(table, level)) {
    for (const FittingQuestion question :
         {FittingQuestion::kTime, FittingQuestion::kTimeAndMemory}) {
      const FittingFloor floor = fitting_floor(table, plan, level, kLimit, question);
      text.add(floor.allocated_bytes).add(floor.step_time_s);
    }
  }
  text.end_line();
}

// What the bounds of a search say of every prefix of a plan.
void add_bounds(AnswerText& text, Bounds& bounds, const SettledRules& rules, const Prefix& plan) {
  for (std::size_t depth = kFirstFloor; depth < kNumAxes; ++depth) {
    if (!bounds.has(depth)) {
      continue;
    }
    const Prefix prefix = rules.prefix_at(plan.index, depth);
    const TimeFloor time = bounds.time(prefix);
    const std::optional<Bound> bound = bounds.over_limit(prefix);
    text.add("depth", depth).add(time.compute_s).add(time.step_time_s);
    text.add(bounds.allocated_floor(prefix, 0)).add(bound ? name_of(*bound) : "no bound");
    text.end_line();
  }
}

void take_floors(const PricesQuestion& asked, const SettledRules& rules, const Job& job,
                 const std::vector<Prefix>& plans, const TakeAnswer& take) {
  PriceTable table = build_price_table(job);
  std::vector<std::size_t> levels;
  for (const PriceFreedom& freedom : freedoms(rules.space().values)) {
    levels.push_back(add_freedom(table, freedom));
  }
  Bounds bounds(job, rules, memory_limit_bytes(job.cluster, {}), table);
  for (std::int64_t i = 0; i < asked.floors && i < std::ssize(plans); ++i) {
    const Prefix& at = plans[static_cast<std::size_t>(i * std::ssize(plans) / asked.floors)];
    AnswerText text;
    text.add("index", at.index);
    add_sizes(text, at.plan);
    text.end_line();
    for (const std::size_t level : levels) { add_floors(text, table, at.plan, level); }
    add_bounds(text, bounds, rules, at);
    take(asked.name + "/floors " + std::to_string(i), text.text());
  }
}

}  // namespace

void answer_prices(const std::string& line, const Library& library, const TakeAnswer& take) {
  const PricesQuestion asked = read_prices_question(line);
  const Job job = read_case(asked.case_line, "case", library).job;
  const SearchSpace space = asked.axes == "all" ? wide_space(job) : default_space(job);
  const PlanSpace plan_axes = plan_space(job, space);
  const SettledRules rules(job, plan_axes);
  if (rules.root_verdict() != rules.distinct()) {
    throw std::invalid_argument("no plan is valid: " + line);
  }
  const std::vector<Prefix> plans = PlanDraw(rules).plans(asked.prices);
  take_prices(asked, job, plans, take);
  take_floors(asked, rules, job, plans, take);
}

}  // namespace shardplan
