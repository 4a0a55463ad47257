#include "tools/commands/why_oom_changes.h"

#include <algorithm>

#include "search/space/resize.h"
#include "tools/commands/advise.h"
#include "tools/commands/why_oom.h"
#include "tools/export/changed_settings.h"
#include "tools/options/plan_words.h"

namespace shardplan {

std::string changed_options(const Question& before, const JudgedPlan& after) {
  const Plan plan = plan_with_stated_dp(before.plan, after);
  const std::int64_t world = after.job.cluster.world_size();
  std::string text =
      world == before.job.cluster.world_size() ? "" : " --num-gpus " + std::to_string(world);
  const std::string fields = options_that_differ(with_open_etp(after.job, before.plan), plan);
  text += fields.empty() ? "" : " " + fields;
  const std::int64_t microbatches = num_microbatches(after.job, after.plan);
  if (before.microbatches_given && microbatches != num_microbatches(before.job, before.plan)) {
    text += " --num-microbatches " + std::to_string(microbatches);
  }
  text += framework_options_that_differ(before.job.profile, after.job.profile);
  const AllocatorKind allocator = after.job.profile.allocator;
  if (allocator != before.job.profile.allocator && allocator == AllocatorKind::kCachingExpandable) {
    text += " (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)";
  }
  return text.empty() ? text : text.substr(text.find_first_not_of(' '));
}

namespace {

// More GPUs that leave all but dp as it is: who shards over dp has less on each.
std::vector<PlanEdit> larger_sizes(const Question& question) {
  std::vector<PlanEdit> edits;
  const ClusterSpec& cluster = question.job.cluster;
  for (const std::int64_t times : {2, 4, 8, 16}) {
    const std::optional<ClusterSpec> larger = resized(cluster, times * cluster.world_size());
    if (!larger) {
      continue;
    }
    const std::int64_t batches = question.microbatches_given ? times : 1;
    edits.push_back({.field = "num_gpus", .apply = [=](Job& job, Plan& plan) {
                       job.cluster = *larger;
                       job.global_batch *= batches;
                       plan.dp *= times;
                     }});
  }
  return edits;
}

// The fewest that do.
void find_more_gpus(WhyOomReport& report) {
  const Question& question = report.question;
  const std::vector<PlanEdit> edits = larger_sizes(question);
  const AdviceResult result =
      advise(question.job, question.plan, edits, {.goal = AdviceGoal::kLessMemory});
  report.changes_tried += result.singles_tried - result.singles_invalid;
  const auto fewest = std::ranges::min_element(
      result.singles, {}, [](const Advice& advice) { return advice.edits.front(); });
  if (fewest != result.singles.end()) {
    report.changes.push_back(
        {.text = changed_options(question, fewest->changed), .judged = fewest->changed});
  }
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
      report.changes.push_back(
          {.text = changed_options(question, advice.changed), .judged = advice.changed});
    }
  }
  std::ranges::stable_sort(report.changes, {},
                           [](const PlanChange& change) { return change.judged.time.total_s; });
  find_more_gpus(report);
  if (!report.changes.empty()) {
    PlanChange& first = report.changes.front();
    Question changed = question;
    changed.job = first.judged.job;
    changed.plan = plan_with_stated_dp(question.plan, first.judged);
    first.settings = changed_settings(report.options, question, changed, library);
  }
}

}  // namespace shardplan
