#include "tests/search/brute_force.h"

#include <algorithm>
#include <array>
#include <utility>

#include "estimator/plan/layer_partition.h"

namespace shardplan {

namespace {

// Every plan so far with every value of one more axis.
template <class Values, class Field>
void multiply(std::vector<Plan>& plans, const Values& values, Field Plan::*field) {
  std::vector<Plan> product;
  for (const Plan& plan : plans) {
    for (const auto& value : values) {
      product.push_back(plan);
      product.back().*field = value;
    }
  }
  plans = std::move(product);
}

std::int64_t sum(const std::vector<std::int64_t>& numbers) {
  std::int64_t total = 0;
  for (const std::int64_t number : numbers) { total += number; }
  return total;
}

// The profile's own split, then, where it has none, those that lack layers at the ends, the front
// first.
std::vector<Plan> splits_of(const Job& job, const SearchSpace& space, const Plan& plan) {
  std::vector<Plan> splits;
  for (const std::int64_t pp : space.pp) {
    for (const std::int64_t vpp : space.vpp) {
      Plan even = plan;
      even.pp = pp;
      even.vpp = vpp;
      splits.push_back(even);
      const std::int64_t chunks = pp * vpp;
      const std::int64_t most = (job.model.num_layers() + chunks - 1) / chunks;
      const std::int64_t limit = most < 3 ? 3 : most;
      const bool is_uneven = space.uneven_layers && layers_per_chunk(job, even).empty();
      for (std::int64_t at_front = most; is_uneven && at_front >= 0; --at_front) {
        for (std::int64_t at_back = most; at_back >= 0; --at_back) {
          Plan uneven = even;
          uneven.layers_per_chunk.assign(static_cast<std::size_t>(chunks), most);
          uneven.layers_per_chunk.front() -= at_front;
          uneven.layers_per_chunk.back() -= at_back;
          const std::int64_t missing = at_front + at_back;
          if (chunks > 1 && missing > 0 && missing <= limit && at_front - at_back <= 1 &&
              at_back - at_front <= 1 && sum(uneven.layers_per_chunk) == job.model.num_layers()) {
            splits.push_back(uneven);
          }
        }
      }
      // One stage of each chunk: the last and the first have one layer less, so many are missing.
      const std::int64_t lighter = most * pp - job.model.num_layers();
      if (is_uneven && vpp == 1 && pp > 1 && pp <= job.model.num_layers() &&
          splits.back().layers_per_chunk.empty()) {
        Plan uneven = even;
        for (std::int64_t stage = 0; stage < pp; ++stage) {
          const bool is_lighter = stage == pp - 1 || stage < lighter - 1;
          uneven.layers_per_chunk.push_back(is_lighter ? most - 1 : most);
        }
        splits.push_back(uneven);
      }
    }
  }
  return splits;
}

// The plan with everything without effect set to one spelling.
Plan spelled_one_way(const Job& job, Plan plan) {
  if (plan.cp == 1) {
    plan.cp_method = CpMethod::kRing;
  }
  if (plan.pp == 1 && plan.schedule == Schedule::k1F1B) {
    plan.schedule = Schedule::kNone;
  }
  const auto ranks = [&](Dimension dimension) {
    return std::array{plan.pp, data_parallel_size(job, plan), plan.cp,
                      plan.tp}[static_cast<std::size_t>(dimension)];
  };
  std::vector<Dimension> order;
  for (const bool single : {true, false}) {
    for (const Dimension dimension : Plan{}.rank_order) {
      if (single && ranks(dimension) == 1) {
        order.push_back(dimension);
      }
    }
    for (const Dimension dimension : plan.rank_order) {
      if (!single && ranks(dimension) != 1) {
        order.push_back(dimension);
      }
    }
  }
  std::ranges::copy(order, plan.rank_order.begin());
  std::int64_t longest = 0;
  for (const std::int64_t layers : layers_per_chunk(job, plan)) {
    longest = std::max(longest, layers);
  }
  Recompute& recompute = plan.recompute;
  if (recompute.granularity == RecomputeGranularity::kFull &&
      recompute.method == RecomputeMethod::kBlock && recompute.num_layers >= longest) {
    recompute.method = RecomputeMethod::kUniform;
    recompute.num_layers = 1;
  }
  return plan;
}

std::string equivalence(const Plan& plan, const Plan& earlier) {
  if (plan.schedule != earlier.schedule) {
    return "equivalent: schedule_without_pipeline";
  }
  if (plan.cp_method != earlier.cp_method) {
    return "equivalent: cp_method_without_cp";
  }
  if (plan.rank_order != earlier.rank_order) {
    return "equivalent: rank_order_of_single_ranks";
  }
  return "equivalent: recompute_block_covers_chunk";
}

}  // namespace

std::vector<Plan> all_plans(const Job& job, const SearchSpace& space) {
  std::vector<Plan> plans = {Plan{}};
  multiply(plans, space.tp, &Plan::tp);
  multiply(plans, space.cp, &Plan::cp);
  multiply(plans, space.ep, &Plan::ep);
  multiply(plans, space.etp, &Plan::etp);
  std::vector<Plan> split;
  for (const Plan& plan : plans) {
    std::ranges::move(splits_of(job, space, plan), std::back_inserter(split));
  }
  plans = std::move(split);
  if (!space.dp.empty()) {
    multiply(plans, space.dp, &Plan::dp);
  }
  multiply(plans, space.moe_buffer_factor, &Plan::moe_buffer_factor);
  multiply(plans, space.micro_batch, &Plan::micro_batch);
  multiply(plans, space.sequence_parallel, &Plan::sequence_parallel);
  multiply(plans, space.cp_method, &Plan::cp_method);
  multiply(plans, space.precision, &Plan::precision);
  multiply(plans, space.recompute, &Plan::recompute);
  multiply(plans, space.schedule, &Plan::schedule);
  multiply(plans, space.rank_order, &Plan::rank_order);
  multiply(plans, space.zero, &Plan::zero);
  multiply(plans, space.dp_replicate, &Plan::dp_replicate);
  multiply(plans, space.grad_dtype, &Plan::grad_dtype);
  multiply(plans, space.master_dtype, &Plan::master_dtype);
  multiply(plans, space.exp_avg_dtype, &Plan::exp_avg_dtype);
  multiply(plans, space.exp_avg_sq_dtype, &Plan::exp_avg_sq_dtype);
  multiply(plans, space.offload, &Plan::offload);
  return plans;
}

BruteForce brute_force(const Job& job, const SearchSpace& space, MemoryBasis basis) {
  BruteForce brute;
  std::vector<Plan> seen;  // of brute.plans, spelled one way
  for (const Plan& plan : all_plans(job, space)) {
    ++brute.plans_in_space;
    if (const std::optional<InvalidReason> reason = why_invalid(job, plan)) {
      const bool unsupported = reason->rule.rfind("unsupported", 0) == 0;
      ++brute.pruned[(unsupported ? "" : "invalid: ") + reason->rule];
      continue;
    }
    const Plan spelled = spelled_one_way(job, plan);
    if (const auto twin = std::ranges::find(seen, spelled); twin != seen.end()) {
      const Plan& earlier = brute.plans[static_cast<std::size_t>(twin - seen.begin())].plan;
      ++brute.pruned[equivalence(plan, earlier)];
      continue;
    }
    seen.push_back(spelled);
    BrutePlan priced = {.plan = plan};
    const MemoryEstimate memory = estimate_memory(job, plan);
    for (const StageMemory& stage : memory.stages) {
      priced.allocated_bytes = std::max(priced.allocated_bytes, stage.allocated_bytes);
    }
    priced.basis_bytes = basis_bytes(memory, basis);
    priced.device_used_bytes = basis_bytes(memory, MemoryBasis::kDeviceUsed);
    priced.tokens_per_s_per_gpu = estimate_step_time(job, plan).tokens_per_s_per_gpu;
    brute.plans.push_back(priced);
  }
  return brute;
}

namespace {

// Of the plans that fit those that no other beats, by comparing all pairs; of equals the first.
std::vector<BrutePlan> unbeaten(const std::vector<BrutePlan>& plans) {
  std::vector<BrutePlan> front;
  for (std::size_t at = 0; at < plans.size(); ++at) {
    bool beaten = false;
    for (std::size_t other = 0; other < plans.size() && !beaten; ++other) {
      const BrutePlan& one = plans[at];
      const BrutePlan& two = plans[other];
      const bool as_good = two.allocated_bytes <= one.allocated_bytes &&
                           two.tokens_per_s_per_gpu >= one.tokens_per_s_per_gpu;
      const bool better = two.allocated_bytes < one.allocated_bytes ||
                          two.tokens_per_s_per_gpu > one.tokens_per_s_per_gpu || other < at;
      beaten = other != at && as_good && better;
    }
    if (!beaten) {
      front.push_back(plans[at]);
    }
  }
  std::ranges::sort(front, {}, &BrutePlan::allocated_bytes);
  return front;
}

void keep_first_of_families(std::vector<BrutePlan>& plans) {
  std::vector<std::array<std::int64_t, 5>> seen;
  std::erase_if(plans, [&](const BrutePlan& one) {
    const Plan& plan = one.plan;
    const std::array<std::int64_t, 5> family = {plan.tp, plan.cp, plan.ep, plan.pp, plan.zero};
    const bool again = std::ranges::find(seen, family) != seen.end();
    seen.push_back(family);
    return again;
  });
}

}  // namespace

BruteRanking rank(const Job& job, const BruteForce& brute, const SearchOptions& options) {
  BruteRanking ranking = {.top = {}, .pareto = {}, .pruned = brute.pruned};
  const double capacity = static_cast<double>(options.basis == MemoryBasis::kAllocated
                                                  ? nominal_capacity_bytes(job.cluster)
                                                  : device_capacity_bytes(job.cluster));
  for (const BrutePlan& plan : brute.plans) {
    const MemoryVerdict verdict = verdict_of(job, estimate_memory(job, plan.plan), kCardAlone);
    if (static_cast<double>(plan.basis_bytes) <= options.memory_threshold * capacity &&
        verdict < MemoryVerdict::kTight) {
      ++ranking.fitting;
      ranking.top.push_back(plan);
    } else {
      ++ranking.pruned["does_not_fit"];
    }
  }
  ranking.pareto = unbeaten(ranking.top);
  // Stable: plan order breaks the last ties.
  std::ranges::stable_sort(ranking.top, [](const BrutePlan& one, const BrutePlan& other) {
    return std::pair(-one.tokens_per_s_per_gpu, one.allocated_bytes) <
           std::pair(-other.tokens_per_s_per_gpu, other.allocated_bytes);
  });
  if (options.distinct) {
    keep_first_of_families(ranking.top);
  }
  if (static_cast<std::int64_t>(ranking.top.size()) > options.top) {
    ranking.top.resize(static_cast<std::size_t>(options.top));
  }
  return ranking;
}

}  // namespace shardplan
