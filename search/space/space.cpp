#include "search/space/space.h"

#include <algorithm>

#include "estimator/plan/layer_partition.h"

namespace shardplan {

namespace {

std::int64_t count(std::size_t size) {
  return static_cast<std::int64_t>(size);
}

// One row of kAxes for an axis whose values are a list of SearchSpace and one field of Plan.
template <auto Values, auto Field>
constexpr Axis list_axis(std::string_view name, PlanField field) {
  return {.name = name,
          .fields = {field},
          .size = [](const PlanSpace& space) { return count((space.values.*Values).size()); },
          .choose = [](const PlanSpace& space, std::size_t value,
                       Plan& plan) { plan.*Field = (space.values.*Values)[value]; }};
}

void choose_split(const PlanSpace& space, std::size_t value, Plan& plan) {
  const StageSplit& split = space.splits[value];
  plan.pp = split.pp;
  plan.vpp = split.vpp;
  plan.layers_per_chunk = split.layers_per_chunk;
}

std::vector<StageSplit> stage_splits(const Job& job, const SearchSpace& space) {
  std::vector<StageSplit> splits;
  for (const std::int64_t pp : space.pp) {
    for (const std::int64_t vpp : space.vpp) {
      const StageSplit even = {.pp = pp, .vpp = vpp, .layers_per_chunk = {}};
      splits.push_back(even);
      Plan plan;
      choose_split({.values = {}, .splits = {even}}, 0, plan);
      if (!space.uneven_layers || !layers_per_chunk(job, plan).empty()) {
        continue;
      }
      for (const std::vector<std::int64_t>& layers :
           uneven_splits(job.model.num_layers(), pp, vpp)) {
        splits.push_back({.pp = pp, .vpp = vpp, .layers_per_chunk = layers});
      }
    }
  }
  return splits;
}

}  // namespace

const std::array<Axis, kNumAxes> kAxes = {{
    list_axis<&SearchSpace::tp, &Plan::tp>("tp", PlanField::kTp),
    list_axis<&SearchSpace::cp, &Plan::cp>("cp", PlanField::kCp),
    list_axis<&SearchSpace::ep, &Plan::ep>("ep", PlanField::kEp),
    list_axis<&SearchSpace::etp, &Plan::etp>("etp", PlanField::kEtp),
    {.name = "pp, vpp",
     .fields = {PlanField::kPp, PlanField::kVpp, PlanField::kLayersPerChunk},
     .size = [](const PlanSpace& space) { return count(space.splits.size()); },
     .choose = choose_split},
    list_axis<&SearchSpace::dp, &Plan::dp>("dp", PlanField::kDp),
    list_axis<&SearchSpace::moe_buffer_factor, &Plan::moe_buffer_factor>(
        "moe_buffer_factor", PlanField::kMoeBufferFactor),
    list_axis<&SearchSpace::micro_batch, &Plan::micro_batch>("micro_batch", PlanField::kMicroBatch),
    list_axis<&SearchSpace::sequence_parallel, &Plan::sequence_parallel>(
        "sequence_parallel", PlanField::kSequenceParallel),
    list_axis<&SearchSpace::cp_method, &Plan::cp_method>("cp_method", PlanField::kCpMethod),
    list_axis<&SearchSpace::precision, &Plan::precision>("precision", PlanField::kPrecision),
    list_axis<&SearchSpace::recompute, &Plan::recompute>("recompute", PlanField::kRecompute),
    list_axis<&SearchSpace::schedule, &Plan::schedule>("schedule", PlanField::kSchedule),
    list_axis<&SearchSpace::rank_order, &Plan::rank_order>("rank_order", PlanField::kRankOrder),
    list_axis<&SearchSpace::zero, &Plan::zero>("zero", PlanField::kZero),
    list_axis<&SearchSpace::dp_replicate, &Plan::dp_replicate>("dp_replicate",
                                                               PlanField::kDpReplicate),
    list_axis<&SearchSpace::grad_dtype, &Plan::grad_dtype>("grad_dtype", PlanField::kGradDtype),
    list_axis<&SearchSpace::master_dtype, &Plan::master_dtype>("master_dtype",
                                                               PlanField::kMasterDtype),
    list_axis<&SearchSpace::exp_avg_dtype, &Plan::exp_avg_dtype>("exp_avg_dtype",
                                                                 PlanField::kExpAvgDtype),
    list_axis<&SearchSpace::exp_avg_sq_dtype, &Plan::exp_avg_sq_dtype>("exp_avg_sq_dtype",
                                                                       PlanField::kExpAvgSqDtype),
    list_axis<&SearchSpace::offload, &Plan::offload>("offload", PlanField::kOffload),
}};

std::vector<std::vector<std::int64_t>> uneven_splits(std::int64_t num_layers, std::int64_t pp,
                                                     std::int64_t vpp) {
  const std::int64_t chunks = pp * vpp;
  const std::int64_t most = div_ceil(num_layers, chunks);
  const std::int64_t missing = most * chunks - num_layers;
  const std::vector<std::int64_t> full(static_cast<std::size_t>(chunks), most);
  std::vector<std::vector<std::int64_t>> splits;
  if (chunks < 2 || missing == 0) {
    return splits;
  }
  const std::int64_t more_than_half = div_ceil(missing, 2);
  if (missing <= std::max(most, kMissingLayersAlways) && more_than_half <= most) {
    for (std::int64_t at_front = more_than_half; at_front >= missing / 2; --at_front) {
      std::vector<std::int64_t>& layers = splits.emplace_back(full);
      layers.front() -= at_front;
      layers.back() -= missing - at_front;
    }
  } else if (vpp == 1 && pp <= num_layers) {
    std::vector<std::int64_t>& layers = splits.emplace_back(full);
    layers.back() -= 1;
    for (std::int64_t stage = 0; stage < missing - 1; ++stage) {
      layers[static_cast<std::size_t>(stage)] -= 1;
    }
  }
  return splits;
}

PlanSpace plan_space(const Job& job, const SearchSpace& space) {
  PlanSpace plans = {.values = space, .splits = stage_splits(job, space)};
  if (plans.values.dp.empty()) {
    plans.values.dp = {0};
  }
  return plans;
}

std::int64_t num_plans(const PlanSpace& space) {
  std::int64_t plans = 1;
  for (const Axis& axis : kAxes) {
    if (__builtin_mul_overflow(plans, axis.size(space), &plans)) {
      return kUncountable;
    }
  }
  return plans;
}

Plan plan_at(const PlanSpace& space, std::int64_t index) {
  Plan plan;
  for (std::size_t axis = kNumAxes; axis-- > 0;) {
    const std::int64_t size = kAxes[axis].size(space);
    kAxes[axis].choose(space, static_cast<std::size_t>(index % size), plan);
    index /= size;
  }
  return plan;
}

}  // namespace shardplan
