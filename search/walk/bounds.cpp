#include "search/walk/bounds.h"

namespace shardplan {

namespace {

// Branches of fewer plans are priced instead: a floor costs as much as a few prices.
constexpr std::int64_t kFewestPlans = 4;

// The axes that are open at the depth, with their values.
PriceFreedom freedom_at(const SearchSpace& values, std::size_t depth) {
  PriceFreedom freedom;
  const auto open = [depth](PlanField field) {
    for (std::size_t axis = depth; axis < kNumAxes; ++axis) {
      if (kAxes[axis].fields.has(field)) {
        return true;
      }
    }
    return false;
  };
  const auto take = [&](auto& list, const auto& from, PlanField field) {
    if (open(field) && from.size() > 1) {
      list = from;
    }
  };
  take(freedom.micro_batch, values.micro_batch, PlanField::kMicroBatch);
  take(freedom.sequence_parallel, values.sequence_parallel, PlanField::kSequenceParallel);
  take(freedom.cp_method, values.cp_method, PlanField::kCpMethod);
  take(freedom.precision, values.precision, PlanField::kPrecision);
  take(freedom.recompute, values.recompute, PlanField::kRecompute);
  take(freedom.schedule, values.schedule, PlanField::kSchedule);
  take(freedom.rank_order, values.rank_order, PlanField::kRankOrder);
  take(freedom.zero, values.zero, PlanField::kZero);
  take(freedom.dp_replicate, values.dp_replicate, PlanField::kDpReplicate);
  take(freedom.grad_dtype, values.grad_dtype, PlanField::kGradDtype);
  take(freedom.master_dtype, values.master_dtype, PlanField::kMasterDtype);
  take(freedom.exp_avg_dtype, values.exp_avg_dtype, PlanField::kExpAvgDtype);
  take(freedom.exp_avg_sq_dtype, values.exp_avg_sq_dtype, PlanField::kExpAvgSqDtype);
  take(freedom.offload, values.offload, PlanField::kOffload);
  return freedom;
}

}  // namespace

Bounds::Bounds(const Job& job, const SettledRules& rules, std::int64_t limit_bytes,
               PriceTable& table)
    : job_(&job), limit_bytes_(limit_bytes), table_(&table) {
  for (std::size_t depth = kFirstFloor; depth < kNumAxes; ++depth) {
    const bool is_first_of_equals = depth == kFirstFloor || rules.size(depth - 1) > 1;
    if (is_first_of_equals && rules.plans_below(depth) >= kFewestPlans) {
      levels_[depth] = add_freedom(table, freedom_at(rules.space().values, depth));
    }
  }
}

// Open axes hold whatever was chosen last; a microbatch of one divides what any other divides.
const Plan& Bounds::plan_of(const Prefix& prefix) {
  if (prefix.depth > kFirstFloor) {  // the microbatch is chosen
    return prefix.plan;
  }
  plan_ = prefix.plan;
  plan_.micro_batch = 1;
  return plan_;
}

std::optional<Bound> Bounds::cuts(const Prefix& prefix, const Answers& answers,
                                  const TimeFloor* known) {
  const std::size_t level = *levels_[prefix.depth];
  const Plan& plan = plan_of(prefix);
  // The best that a plan of the branch could be: were it offered, would it be kept?
  Candidate best = {.index = prefix.index, .price = {}, .family = {}};
  const auto is_too_slow = [&](double step_time_s) {
    best.price.tokens_per_s_per_gpu = tokens_per_s(step_time_s);
    return !answers.admits_any(best);
  };
  const TimeFloor time = known != nullptr ? *known : time_floor(*table_, plan, level);
  if (is_too_slow(time.compute_s)) {
    return Bound::kComputeTooSlow;
  }
  if (is_too_slow(time.step_time_s)) {
    return Bound::kStepTooSlow;
  }
  best.price.allocated_bytes = state_floor_bytes(*table_, plan, level, limit_bytes_);
  if (best.price.allocated_bytes > limit_bytes_) {
    return Bound::kStateOverLimit;
  }
  if (is_too_slow(time.step_time_s)) {
    return Bound::kStepTooSlow;
  }
  // Activations cost the most to bound.
  best.price.allocated_bytes = memory_floor(*table_, plan, level).allocated_bytes;
  if (best.price.allocated_bytes > limit_bytes_) {
    return Bound::kActivationsOverLimit;
  }
  if (!answers.admits_any(best)) {
    return Bound::kStepTooSlow;
  }
  return opens_only_state(*table_, level) ? cuts_states(prefix, level, answers) : std::nullopt;
}

std::optional<Bound> Bounds::over_limit(const Prefix& prefix) {
  const std::size_t level = *levels_[prefix.depth];
  const Plan& plan = plan_of(prefix);
  if (state_floor_bytes(*table_, plan, level, limit_bytes_) > limit_bytes_) {
    return Bound::kStateOverLimit;
  }
  return memory_floor(*table_, plan, level).allocated_bytes > limit_bytes_
             ? std::optional(Bound::kActivationsOverLimit)
             : std::nullopt;
}

// What is fast enough may not be what fits: the fastest that fits is slower than either floor says.
std::optional<Bound> Bounds::cuts_states(const Prefix& prefix, std::size_t level,
                                         const Answers& answers) {
  const FittingFloor floor =
      fitting_floor(*table_, prefix.plan, level, limit_bytes_,
                    answers.wants_front ? FittingQuestion::kTimeAndMemory : FittingQuestion::kTime);
  if (floor.allocated_bytes > limit_bytes_) {
    return Bound::kActivationsOverLimit;
  }
  Candidate best = {.index = prefix.index, .price = {}, .family = {}};
  best.price.allocated_bytes = floor.allocated_bytes;
  best.price.tokens_per_s_per_gpu = tokens_per_s(floor.step_time_s);
  return answers.admits_any(best) ? std::nullopt : std::optional(Bound::kStepTooSlow);
}

std::int64_t Bounds::allocated_floor(const Prefix& prefix, std::int64_t enough) {
  if (!has(prefix.depth)) {
    return 0;
  }
  const std::size_t level = *levels_[prefix.depth];
  const Plan& plan = plan_of(prefix);
  const std::int64_t state_bytes = state_floor_bytes(*table_, plan, level, enough);
  return state_bytes > enough ? state_bytes : memory_floor(*table_, plan, level).allocated_bytes;
}

TimeFloor Bounds::time(const Prefix& prefix) {
  return has(prefix.depth) ? time_floor(*table_, plan_of(prefix), *levels_[prefix.depth])
                           : TimeFloor{};
}

// As in a price, with the same operations: what is longer is never faster.
double Bounds::tokens_per_s(double step_time_s) const {
  return static_cast<double>(job_->global_batch) * static_cast<double>(job_->sequence_length) /
         step_time_s / static_cast<double>(job_->cluster.world_size());
}

}  // namespace shardplan
