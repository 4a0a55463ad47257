#include "tools/options/search_question.h"

#include <algorithm>
#include <set>

#include "search/space/space.h"
#include "tools/options/axes.h"
#include "tools/options/command_words.h"
#include "tools/options/fixed_fields.h"
#include "tools/options/plan_words.h"
#include "tools/options/search_axes.h"

namespace shardplan {
namespace {

// `shardplan estimate` with every option of the search that estimate knows, output apart. The batch
// of a run's file may follow from sizes that the plan changes: it is always said.
std::string estimate_command(Options options, const Job& job) {
  for (const OptionRow* row : options_of("estimate")) {
    if (row->group == kPlanGroup) {  // the plan follows
      options.values.erase(row->name);
    }
  }
  if (!given(options, "global-batch")) {
    options.values["global-batch"] = {std::to_string(job.global_batch)};
  }
  return command_text(options, "estimate");
}

// An axis may be named once: of two words one would be dropped silently.
SearchSpace space_of(const Options& options, const Job& job, const std::optional<GivenRun>& run) {
  SearchSpace space = open_axes(options, job, run);
  std::set<std::string> named;
  fix_given_fields(options, space, named);
  const auto take = [&](const char* flag, void (*apply)(SearchSpace&, const std::string&)) {
    for (const std::string& word : all_of(options, flag)) {
      if (!named.insert(axis_of(flag, word)).second) {
        throw second_word(std::string("--").append(flag).append(" ").append(word),
                          axis_of(flag, word), "one word for an axis");
      }
      apply(space, word);
    }
  };
  take("fix", fix_axis);
  take("range", restrict_axis);
  if (num_plans(plan_space(job, space)) == kUncountable) {
    throw InputError(
        "--axes, --range: found more plans than 64 bits count, expected fewer values of the axes");
  }
  return space;
}

}  // namespace

std::string SearchQuestion::command_of(const Plan& plan) const {
  return estimate_command + " " + options_of_plan(job, plan, run);
}

SearchQuestion search_question_of(const Options& raw_options, const Library& library) {
  Options options = with_plan_fields(raw_options);
  if (given(options, "cluster")) {  // one of those that --gpu of a sweep names
    options.values.erase("gpu");
  }
  GivenJob asked = job_of(options, library);
  if (asked.run && !asked.run->reading.unsupported.empty()) {
    throw InputError(asked.run->file + ": " + asked.run->reading.unsupported);
  }
  asked.job.global_batch = count_or(options, "global-batch", asked.job.global_batch);
  return {.job = asked.job,
          .space = space_of(options, asked.job, asked.run),
          .run = asked.run,
          .estimate_command = estimate_command(options, asked.job),
          .warnings = asked.warnings};
}

}  // namespace shardplan
