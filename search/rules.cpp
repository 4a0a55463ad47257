#include "search/rules.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "estimator/layer_partition.h"
#include "estimator/validity.h"

namespace shardplan {

namespace {

// How context-parallel ranks exchange keys and values says nothing when there is one rank.
std::optional<Plan> other_cp_method(const Job&, const SearchSpace& space, const Plan& plan) {
  if (plan.cp > 1 || plan.cp_method == space.cp_method.front()) {
    return std::nullopt;
  }
  Plan twin = plan;
  twin.cp_method = space.cp_method.front();
  return twin;
}

bool is_plain_accumulation(Schedule schedule) {
  return schedule == Schedule::kNone || schedule == Schedule::k1F1B;
}

// On one stage 1F1B is forward, backward, microbatch after microbatch: no pipeline at all.
std::optional<Plan> other_schedule(const Job&, const SearchSpace& space, const Plan& plan) {
  if (plan.pp > 1 || !is_plain_accumulation(plan.schedule)) {
    return std::nullopt;
  }
  const Schedule first = *std::ranges::find_if(space.schedule, is_plain_accumulation);
  if (plan.schedule == first) {
    return std::nullopt;
  }
  Plan twin = plan;
  twin.schedule = first;
  return twin;
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
std::int64_t order_of_several_ranks(const Job& job, const Plan& plan,
                                    const std::array<Dimension, 4>& order) {
  std::int64_t number = 0;
  for (const Dimension dimension : order) {
    if (!has_one_rank(job, plan, dimension)) {
      number = 5 * number + 1 + static_cast<std::int64_t>(dimension);
    }
  }
  return number;
}

std::optional<Plan> other_rank_order(const Job& job, const SearchSpace& space, const Plan& plan) {
  const std::int64_t order = order_of_several_ranks(job, plan, plan.rank_order);
  for (const std::array<Dimension, 4>& earlier : space.rank_order) {
    if (earlier == plan.rank_order) {
      return std::nullopt;
    }
    if (order_of_several_ranks(job, plan, earlier) == order) {
      Plan twin = plan;
      twin.rank_order = earlier;
      return twin;
    }
  }
  return std::nullopt;
}

// Full recompute of the first n layers of each chunk, n no less than the chunk has, is full
// recompute of every layer by itself.
bool recomputes_every_layer(const Recompute& recompute, std::int64_t longest_chunk) {
  if (recompute.granularity != RecomputeGranularity::kFull) {
    return false;
  }
  return recompute.method == RecomputeMethod::kUniform ? recompute.num_layers == 1
                                                       : recompute.num_layers >= longest_chunk;
}

std::optional<Plan> longer_recompute_block(const Job& job, const SearchSpace& space,
                                           const Plan& plan) {
  if (plan.recompute.granularity != RecomputeGranularity::kFull) {
    return std::nullopt;
  }
  const std::int64_t longest_chunk = std::ranges::max(layers_per_chunk(job, plan));
  if (!recomputes_every_layer(plan.recompute, longest_chunk)) {
    return std::nullopt;
  }
  for (const Recompute& earlier : space.recompute) {
    if (earlier == plan.recompute) {
      return std::nullopt;
    }
    if (recomputes_every_layer(earlier, longest_chunk)) {
      Plan twin = plan;
      twin.recompute = earlier;
      return twin;
    }
  }
  return std::nullopt;
}

constexpr std::array<EquivalenceRule, 4> kEquivalenceRules = {{
    {.name = "schedule_without_pipeline", .earlier_twin = other_schedule},
    {.name = "cp_method_without_cp", .earlier_twin = other_cp_method},
    {.name = "rank_order_of_single_ranks", .earlier_twin = other_rank_order},
    {.name = "recompute_block_covers_chunk", .earlier_twin = longer_recompute_block},
}};

}  // namespace

std::span<const EquivalenceRule> equivalence_rules() {
  return kEquivalenceRules;
}

const EquivalenceRule* first_equivalence(const Job& job, const SearchSpace& space,
                                         const Plan& plan) {
  for (const EquivalenceRule& rule : kEquivalenceRules) {
    const std::optional<Plan> twin = rule.earlier_twin(job, space, plan);
    if (twin && first_broken_rule(job, *twin) == nullptr) {
      return &rule;
    }
  }
  return nullptr;
}

}  // namespace shardplan
