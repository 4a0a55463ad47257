// What small changes do to a plan, and how its bytes grow along every axis.
#pragma once

#include <string>
#include <vector>

#include "search/questions/advise.h"
#include "search/questions/scaling.h"
#include "tools/commands/command.h"
#include "tools/options/question.h"
#include "tools/report/table.h"
#include "tools/report/terminal.h"

namespace shardplan {

struct AdviseReport {
  Options options;  // with the fields of the plan as options of their own
  Question question;
  MemoryRule rule;
  Prediction prediction = {};  // of the plan itself
  std::vector<PlanEdit> edits = {};
  AdviceResult result = {};
  std::vector<ScalingTable> scaling = {};
};

// What advise tries: single_edits, and the framework's switches that cost no memory nobody counts.
// The library must outlive them.
std::vector<PlanEdit> edits_of(const Job& job, const Plan& plan, const Library& library);

// The changed plan as options state it: with its dp where they have one.
Plan plan_with_stated_dp(const Plan& before, const JudgedPlan& changed);

// " --framework-option allocator=caching_expandable" for every field that differs.
std::string framework_options_that_differ(const FrameworkProfile& base,
                                          const FrameworkProfile& changed);

// The fields in which a changed plan differs: "tp 2 -> 4, dp 8 -> 4", switches of the framework
// included.
std::string difference_text(const Job& job, const Plan& plan, const Job& changed_job,
                            const Plan& changed_plan);

ExitCode run_advise(const Arguments& arguments);

}  // namespace shardplan
