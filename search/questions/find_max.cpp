#include "search/questions/find_max.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "search/walk/walk.h"

namespace shardplan {

namespace {

// Far beyond any training run.
constexpr std::int64_t kMaxMicroBatch = std::int64_t{1} << 16;
constexpr std::int64_t kMaxSequenceLength = std::int64_t{1} << 26;

std::int64_t cap(FindMaxAxis axis) {
  return axis == FindMaxAxis::kSequenceLength ? kMaxSequenceLength : kMaxMicroBatch;
}

SizedPlan sized(const Job& job, const Plan& plan, FindMaxAxis axis, std::int64_t value) {
  SizedPlan at = {.value = value, .job = job, .plan = plan};
  switch (axis) {
    case FindMaxAxis::kMicroBatch:
      at.plan.micro_batch = value;
      at.job.global_batch = value * data_parallel_size(job, plan) * num_microbatches(job, plan);
      break;
    case FindMaxAxis::kMicroBatchOfGlobalBatch: at.plan.micro_batch = value; break;
    case FindMaxAxis::kSequenceLength: at.job.sequence_length = value; break;
  }
  return at;
}

// Neighbouring micro-batches differ by 1. A sequence is cut into 2 cp pieces (the causal load is
// balanced by giving each rank an early and a late one) and, with sequence parallelism, into cp tp.
// A profile that asks for more gets the first power of two times that which it accepts; the plan's
// own value is always one.
std::int64_t step_of(const Job& job, const Plan& plan, FindMaxAxis axis) {
  const bool is_sequence = axis == FindMaxAxis::kSequenceLength;
  std::int64_t step = is_sequence && plan.cp > 1 ? 2 * plan.cp : 1;
  if (is_sequence && plan.sequence_parallel) {
    step = std::lcm(step, plan.cp * plan.tp);
  }
  for (; step <= cap(axis); step *= 2) {
    const SizedPlan one = sized(job, plan, axis, step);
    const SizedPlan three = sized(job, plan, axis, 3 * step);
    if (!why_invalid(one.job, one.plan) && !why_invalid(three.job, three.plan)) {
      return step;
    }
  }
  return is_sequence ? job.sequence_length : plan.micro_batch;
}

// As fits() says of the estimate, which is made only where the bounds of the price leave it open.
bool fits_at(const SizedPlan& at, const SearchOptions& options) {
  PriceTable table = build_price_table(at.job);
  const Price bounds = price(table, at.plan);
  const std::int64_t limit = memory_limit_bytes(at.job.cluster, options.rule());
  const std::int64_t card = card_bytes(at.job);
  if (bounds.allocated_bytes > limit || bounds.device_least_bytes > card) {
    return false;
  }
  const bool is_sure =
      upper_basis_bytes(bounds, options.basis) <= limit && bounds.device_used_bytes <= card;
  return is_sure || fits(at.job, estimate_memory(at.job, at.plan), options);
}

// Moves the side of the boundary on which the value lies; whether it fits.
bool try_value(FindMaxResult& result, SizedPlan at, const SearchOptions& options) {
  const bool is_fitting = fits_at(at, options);
  (is_fitting ? result.largest : result.next) = std::move(at);
  return is_fitting;
}

FindMaxResult largest_divisor(const Job& job, const Plan& plan, const SearchOptions& options) {
  const FindMaxAxis axis = FindMaxAxis::kMicroBatchOfGlobalBatch;
  const std::int64_t share = div_exact(job.global_batch, data_parallel_size(job, plan));
  FindMaxResult result;
  for (std::int64_t value = std::min(share, cap(axis)); value >= 1 && !result.largest; --value) {
    SizedPlan at = sized(job, plan, axis, value);
    if (share % value == 0 && !why_invalid(at.job, at.plan)) {
      try_value(result, std::move(at), options);
    }
  }
  return result;
}

}  // namespace

FindMaxResult find_max(const Job& job, const Plan& plan, FindMaxAxis axis,
                       const SearchOptions& options) {
  if (const std::optional<InvalidReason> reason = why_invalid(job, plan)) {
    throw std::logic_error("find_max: " + reason->message);
  }
  if (axis == FindMaxAxis::kMicroBatchOfGlobalBatch) {
    return largest_divisor(job, plan, options);
  }
  FindMaxResult result = {
      .largest = std::nullopt, .next = std::nullopt, .step = step_of(job, plan, axis)};
  const auto try_steps = [&](std::int64_t steps) {
    return try_value(result, sized(job, plan, axis, steps * result.step), options);
  };
  std::int64_t fits = 0;
  std::int64_t fails = 1;
  const std::int64_t max_steps = std::max<std::int64_t>(1, cap(axis) / result.step);
  while (fails <= max_steps && try_steps(fails)) {
    fits = fails;
    fails *= 2;
  }
  if (!result.next) {
    return result;
  }
  while (fails - fits > 1) {
    const std::int64_t middle = fits + (fails - fits) / 2;
    (try_steps(middle) ? fits : fails) = middle;
  }
  return result;
}

}  // namespace shardplan
