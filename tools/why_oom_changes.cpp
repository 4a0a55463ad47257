// Changes of a plan that make it fit, each judged by a whole estimate.
#include <algorithm>

#include "tools/advise.h"
#include "tools/plan_words.h"
#include "tools/why_oom.h"

namespace shardplan {
namespace {

// All options that differ, those that follow from a change too: who sets them has this plan.
std::string text_of(const Question& before, const JudgedPlan& after) {
  const Plan plan = plan_with_stated_dp(before.plan, after);
  std::string text = " " + options_that_differ(with_open_etp(after.job, before.plan), plan);
  const std::int64_t microbatches = num_microbatches(after.job, after.plan);
  if (before.microbatches_given && microbatches != num_microbatches(before.job, before.plan)) {
    text += " --num-microbatches " + std::to_string(microbatches);
  }
  text += framework_options_that_differ(before.job.profile, after.job.profile);
  const AllocatorKind allocator = after.job.profile.allocator;
  if (allocator != before.job.profile.allocator && allocator == AllocatorKind::kCachingExpandable) {
    text += " (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)";
  }
  return text.substr(text.find_first_not_of(' '));
}

}  // namespace

void find_changes(WhyOomReport& report, const Library& library) {
  const Question& question = report.question;
  const AdviceResult result =
      advise(question.job, question.plan, edits_of(question.job, question.plan, library),
             {.goal = AdviceGoal::kLessMemory});
  report.changes_tried =
      result.singles_tried - result.singles_invalid + result.pairs_tried - result.pairs_invalid;
  for (const std::vector<Advice>* list : {&result.singles, &result.pairs}) {
    for (const Advice& advice : *list) {
      report.changes.push_back({text_of(question, advice.changed), advice.changed});
    }
  }
  std::ranges::stable_sort(report.changes, {},
                           [](const PlanChange& change) { return change.judged.time.total_s; });
}

}  // namespace shardplan
