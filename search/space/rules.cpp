#include "search/space/rules.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/plan/layer_partition.h"

namespace shardplan {

namespace {

// The plan with the first value of one axis that comes before its own, means the same and is valid.
template <class Value, class MeansTheSame>
std::optional<Plan> earlier_twin(const Job& job, const Plan& plan, const RuleList& rules,
                                 const std::vector<Value>& values, Value Plan::*field,
                                 const MeansTheSame& means_the_same) {
  for (const Value& value : values) {
    if (value == plan.*field) {
      return std::nullopt;
    }
    if (!means_the_same(value)) {
      continue;
    }
    Plan twin = plan;
    twin.*field = value;
    if (std::ranges::none_of(rules,
                             [&](const ValidityRule* rule) { return rule->broken(job, twin); })) {
      return twin;
    }
  }
  return std::nullopt;
}

bool is_plain_accumulation(Schedule schedule) {
  return row_of(schedule).least_stages == 1;
}

// On one stage 1F1B is forward, backward, microbatch after microbatch: no pipeline at all.
std::optional<Plan> other_schedule(const Job& job, const SearchSpace& space, const Plan& plan,
                                   const RuleList& rules) {
  if (plan.pp > 1 || !is_plain_accumulation(plan.schedule)) {
    return std::nullopt;
  }
  return earlier_twin(job, plan, rules, space.schedule, &Plan::schedule, is_plain_accumulation);
}

// How context-parallel ranks exchange keys and values says nothing when there is one rank.
std::optional<Plan> other_cp_method(const Job& job, const SearchSpace& space, const Plan& plan,
                                    const RuleList& rules) {
  if (plan.cp > 1) {
    return std::nullopt;
  }
  return earlier_twin(job, plan, rules, space.cp_method, &Plan::cp_method,
                      [](CpMethod) { return true; });
}

bool has_one_rank(const Job& job, const Plan& plan, Dimension dimension) {
  switch (dimension) {
    case Dimension::kPp: return plan.pp == 1;
    case Dimension::kDp: return data_parallel_size(job, plan) == 1;
    case Dimension::kCp: return plan.cp == 1;
    case Dimension::kTp: return plan.tp == 1;
  }
  throw std::logic_error("has_one_rank: unknown dimension");
}

// The order as a number that leaves out dimensions of one rank: they may stand anywhere.
std::int64_t order_of_several_ranks(const Job& job, const Plan& plan, const RankOrder& order) {
  std::int64_t number = 0;
  for (const Dimension dimension : order) {
    if (!has_one_rank(job, plan, dimension)) {
      number = 5 * number + 1 + static_cast<std::int64_t>(dimension);
    }
  }
  return number;
}

std::optional<Plan> other_rank_order(const Job& job, const SearchSpace& space, const Plan& plan,
                                     const RuleList& rules) {
  const auto is_same_order = [&](const RankOrder& order) {
    return order_of_several_ranks(job, plan, order) ==
           order_of_several_ranks(job, plan, plan.rank_order);
  };
  return earlier_twin(job, plan, rules, space.rank_order, &Plan::rank_order, is_same_order);
}

bool recomputes_first_layers(const Recompute& recompute) {
  return recompute.granularity == RecomputeGranularity::kFull &&
         recompute.method == RecomputeMethod::kBlock;
}

bool recomputes_one_by_one(const Recompute& recompute) {
  return recompute.granularity == RecomputeGranularity::kFull &&
         recompute.method == RecomputeMethod::kUniform && recompute.num_layers == 1;
}

// Full recompute of the first n layers of each chunk, n no less than the chunk has, is full
// recompute of every layer by itself.
std::optional<Plan> longer_recompute_block(const Job& job, const SearchSpace& space,
                                           const Plan& plan, const RuleList& rules) {
  if (!recomputes_first_layers(plan.recompute) && !recomputes_one_by_one(plan.recompute)) {
    return std::nullopt;
  }
  std::optional<std::int64_t> longest;  // chunk of the plan; 0: its layers do not split
  const auto recomputes_every_layer = [&](const Recompute& recompute) {
    if (!recomputes_first_layers(recompute)) {
      return recomputes_one_by_one(recompute);
    }
    if (!longest) {
      const std::vector<std::int64_t> layers = layers_per_chunk(job, plan);
      longest = layers.empty() ? 0 : std::ranges::max(layers);
    }
    return *longest > 0 && recompute.num_layers >= *longest;
  };
  return recomputes_every_layer(plan.recompute)
             ? earlier_twin(job, plan, rules, space.recompute, &Plan::recompute,
                            recomputes_every_layer)
             : std::nullopt;
}

constexpr std::array<EquivalenceRule, 4> kEquivalenceRules = {{
    {.name = "schedule_without_pipeline",
     .axis = PlanField::kSchedule,
     .reads = {PlanField::kSchedule, PlanField::kPp},
     .earlier_twin = other_schedule},
    {.name = "cp_method_without_cp",
     .axis = PlanField::kCpMethod,
     .reads = {PlanField::kCpMethod, PlanField::kCp},
     .earlier_twin = other_cp_method},
    {.name = "rank_order_of_single_ranks",
     .axis = PlanField::kRankOrder,
     .reads = {PlanField::kRankOrder, PlanField::kTp, PlanField::kCp, PlanField::kPp,
               PlanField::kDp},
     .earlier_twin = other_rank_order},
    {.name = "recompute_block_covers_chunk",
     .axis = PlanField::kRecompute,
     .reads = {PlanField::kRecompute, PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk},
     .earlier_twin = longer_recompute_block},
}};

}  // namespace

std::span<const EquivalenceRule> equivalence_rules() {
  return kEquivalenceRules;
}

RuleList rules_that_read(const Job& job, PlanField field) {
  RuleList rules;
  for (const ValidityRule& rule : validity_rules(job.profile)) {
    if (rule.reads.has(field)) {
      rules.push_back(&rule);
    }
  }
  return rules;
}

const EquivalenceRule* first_equivalence(const Job& job, const SearchSpace& space,
                                         const Plan& plan) {
  const auto rule = std::ranges::find_if(kEquivalenceRules, [&](const EquivalenceRule& row) {
    return row.earlier_twin(job, space, plan, rules_that_read(job, row.axis)).has_value();
  });
  return rule == kEquivalenceRules.end() ? nullptr : &*rule;
}

}  // namespace shardplan
