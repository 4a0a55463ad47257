#include "tools/commands/find_max.h"

#include "search/questions/find_max.h"

namespace shardplan {
namespace {

FindMaxAxis axis_of(const Question& question, const std::string& name) {
  if (name == "sequence_length") {
    return FindMaxAxis::kSequenceLength;
  }
  return question.microbatches_given ? FindMaxAxis::kMicroBatch
                                     : FindMaxAxis::kMicroBatchOfGlobalBatch;
}

}  // namespace

Maximum find_max(Question& question, const std::string& name, const MemoryRule& rule) {
  Maximum maximum = {.name = name};
  const bool is_sequence = name == "sequence_length";
  const bool is_refused = question.run && !question.run->reading.unsupported.empty();
  if (!is_refused && !why_invalid(question.job, question.plan)) {
    const FindMaxResult result =
        find_max(question.job, question.plan, axis_of(question, name), search_options(rule));
    maximum.fits = result.largest.has_value();
    maximum.next = maximum.fits && result.next ? result.next->value : 0;
    // Where nothing fits, the smallest value was tried and is the next one.
    const SizedPlan& shown = maximum.fits ? *result.largest : *result.next;
    if (result.next) {
      const SizedPlan& next = *result.next;
      const MemoryEstimate memory = estimate_memory(next.job, next.plan);
      const bool breaks_rule = !check_rule(next.job, memory, rule).kept();
      maximum.why_not =
          breaks_rule ? share_text(next.job, memory, rule) : fit_reason(next.job, memory);
      maximum.is_surely_largest = breaks_rule && rule.basis == MemoryBasis::kAllocated;
    }
    question.job = shown.job;
    question.plan = shown.plan;
  }
  maximum.value = is_sequence ? question.job.sequence_length : question.plan.micro_batch;
  return maximum;
}

}  // namespace shardplan
