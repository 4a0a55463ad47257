#include "search/find_max.h"

#include <numeric>
#include <stdexcept>

namespace shardplan {

namespace {

// Far beyond any training run; byte counts stay within 64 bits.
constexpr std::int64_t kMaxMicroBatch = std::int64_t{1} << 16;
constexpr std::int64_t kMaxSequenceLength = std::int64_t{1} << 26;

std::int64_t cap(FindMaxAxis axis) {
  return axis == FindMaxAxis::kMicroBatch ? kMaxMicroBatch : kMaxSequenceLength;
}

SizedPlan sized(const Job& job, const Plan& plan, FindMaxAxis axis, std::int64_t value) {
  SizedPlan at = {.value = value, .job = job, .plan = plan, .memory = {}};
  switch (axis) {
    case FindMaxAxis::kMicroBatch:
      at.plan.micro_batch = value;
      at.job.global_batch = value * data_parallel_size(job, plan) * num_microbatches(job, plan);
      break;
    case FindMaxAxis::kSequenceLength: at.job.sequence_length = value; break;
  }
  return at;
}

// Neighbouring micro-batches differ by 1. A sequence is cut into 2 cp pieces (the causal load is
// balanced by giving each rank an early and a late one) and, with sequence parallelism, into cp tp;
// a profile that asks for more gets the first power of two times that which it accepts.
std::int64_t step_of(const Job& job, const Plan& plan, FindMaxAxis axis) {
  if (axis == FindMaxAxis::kMicroBatch) {
    return 1;
  }
  std::int64_t step = plan.cp == 1 ? 1 : 2 * plan.cp;
  if (plan.sequence_parallel) {
    step = std::lcm(step, plan.cp * plan.tp);
  }
  for (; step <= kMaxSequenceLength; step *= 2) {
    const SizedPlan one = sized(job, plan, axis, step);
    const SizedPlan three = sized(job, plan, axis, 3 * step);
    if (!why_invalid(one.job, one.plan) && !why_invalid(three.job, three.plan)) {
      return step;
    }
  }
  throw std::logic_error("find_max: no sequence length is valid for this plan");
}

}  // namespace

FindMaxResult find_max(const Job& job, const Plan& plan, FindMaxAxis axis,
                       const SearchOptions& options) {
  if (const std::optional<InvalidReason> reason = why_invalid(job, plan)) {
    throw std::logic_error("find_max: " + reason->message);
  }
  const std::int64_t limit_bytes = memory_limit_bytes(job.cluster, options);
  FindMaxResult result = {
      .largest = std::nullopt, .next = std::nullopt, .step = step_of(job, plan, axis)};
  // Estimates the value of `steps` steps and moves the side of the boundary on which it lies.
  const auto try_steps = [&](std::int64_t steps) {
    SizedPlan at = sized(job, plan, axis, steps * result.step);
    at.memory = estimate_memory(at.job, at.plan);
    const bool fits = basis_bytes(at.memory, options.basis) <= limit_bytes;
    (fits ? result.largest : result.next) = std::move(at);
    return fits;
  };
  std::int64_t fits = 0;
  std::int64_t fails = 1;
  const std::int64_t max_steps = cap(axis) / result.step;
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
