#include "tools/find_max.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace shardplan {
namespace {

constexpr std::int64_t kMaxSequenceLength = std::int64_t{1} << 27;
constexpr std::int64_t kMaxMicroBatch = std::int64_t{1} << 20;
constexpr std::int64_t kSequenceStep = 128;  // finer answers than this help nobody

enum class Outcome { kInvalid, kTooLarge, kFits };

Question with_value(const Question& question, const std::string& name, std::int64_t value) {
  Question changed = question;
  if (name == "sequence_length") {
    changed.job.sequence_length = value;
    return changed;
  }
  changed.plan.micro_batch = value;
  if (question.microbatches_given) {
    // The number of microbatches stays, so the batch grows with the micro batch.
    changed.job.global_batch = question.job.global_batch / question.plan.micro_batch * value;
  }
  return changed;
}

Outcome outcome_of(const Question& question, const MemoryRule& rule) {
  if (first_broken_rule(question.job, question.plan) != nullptr) {
    return Outcome::kInvalid;
  }
  return is_negative(predict(question.job, question.plan, rule).status) ? Outcome::kTooLarge
                                                                        : Outcome::kFits;
}

// Micro batches that divide the sequences of one data-parallel rank, ascending.
std::vector<std::int64_t> micro_batches(const Question& question) {
  const Job& job = question.job;
  const Plan& plan = question.plan;
  const std::int64_t others = plan.tp * plan.cp * plan.pp;
  const std::int64_t dp = plan.dp > 0 ? plan.dp : job.cluster.world_size() / others;
  std::vector<std::int64_t> values;
  for (std::int64_t value = 1; dp > 0 && value <= std::min(kMaxMicroBatch, job.global_batch / dp);
       ++value) {
    if (job.global_batch % (value * dp) == 0) {
      values.push_back(value);
    }
  }
  return values;
}

Maximum try_all(Question& question, const MemoryRule& rule) {
  const std::string name = "micro_batch";
  const Question asked = question;
  Maximum maximum = {.name = name, .value = question.plan.micro_batch};
  bool is_smallest = true;
  for (const std::int64_t value : micro_batches(asked)) {
    const Question candidate = with_value(asked, name, value);
    const Outcome outcome = outcome_of(candidate, rule);
    if (outcome == Outcome::kInvalid || (outcome == Outcome::kTooLarge && !is_smallest)) {
      continue;
    }
    question = candidate;
    maximum.value = value;
    maximum.fits = outcome == Outcome::kFits;
    is_smallest = false;
  }
  return maximum;
}

Maximum bisect(Question& question, const std::string& name, std::int64_t step, std::int64_t most,
               const MemoryRule& rule) {
  const Question asked = question;
  const auto fits = [&asked, &name, &rule, step](std::int64_t count) {
    return outcome_of(with_value(asked, name, count * step), rule) == Outcome::kFits;
  };
  std::int64_t low = 0;  // fits, or is nothing
  std::int64_t high = 1;
  while (high * step <= most && fits(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (middle * step <= most && fits(middle) ? low : high) = middle;
  }
  Maximum maximum = {.name = name, .value = std::max<std::int64_t>(low, 1) * step, .fits = low > 0};
  question = with_value(asked, name, maximum.value);
  return maximum;
}

}  // namespace

Maximum find_max(Question& question, const std::string& name, const MemoryRule& rule) {
  if (name == "sequence_length") {
    // Context parallelism cuts a sequence into 2 cp pieces, tensor parallelism each into tp.
    const std::int64_t pieces = 2 * question.plan.cp * question.plan.tp;
    return bisect(question, name, std::lcm(kSequenceStep, pieces), kMaxSequenceLength, rule);
  }
  if (question.microbatches_given) {
    return bisect(question, name, 1, kMaxMicroBatch, rule);
  }
  return try_all(question, rule);
}

}  // namespace shardplan
