// shardplan advise: the smallest changes that make a plan fit or faster, and scaling tables.
#include "tools/commands/advise.h"

#include "data/frameworks/framework.h"
#include "data/frameworks/profile_fields.h"
#include "search/questions/edits.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/verdict.h"
#include "tools/export/export.h"
#include "tools/options/command_words.h"
#include "tools/options/plan_words.h"
#include "tools/report/advise.h"
#include "tools/report/csv.h"
#include "tools/report/report.h"
#include "tools/report/text.h"
#include "tools/screen/advise.h"
#include "tools/screen/progress.h"

namespace shardplan {
namespace {

// Switches and choices that the framework declares, at each of their other values; but what is
// trained and logged stays: Nesterov's momentum is no matter of memory or speed.
void add_switches(std::vector<PlanEdit>& edits, const Job& job, const Library& library) {
  for (const ProfileOption& option : profile_options(library, library.key_of(job.profile))) {
    if (takes_uncounted_memory(option) || option.name == "muon_nesterov" ||
        option.name == "log_params_norm") {
      continue;
    }
    for (const std::string& value : other_values(job.profile, option)) {
      FrameworkProfile checked = job.profile;
      apply_option(checked, option.name, value, library);
      edits.push_back({.field = option.name,
                       .apply = [name = option.name, value, &library](Job& changed, Plan&) {
                         apply_option(changed.profile, name, value, library);
                       }});
    }
  }
}

std::string render(const AdviseReport& report, Format format, const Screen& screen) {
  const bool has_scaling = !report.scaling.empty();
  switch (format) {
    case Format::kTable:
      return asks_details(report.options)
                 ? advise_text(report, screen.paint).append(scaling_text(report))
                 : advise_screen(screen, report);
    case Format::kCsv:
      return csv_text(has_scaling ? scaling_csv_table(report) : advise_table(report));
    case Format::kJson: return advise_json(report);
  }
  return "";
}

}  // namespace

std::vector<PlanEdit> edits_of(const Job& job, const Plan& plan, const Library& library) {
  std::vector<PlanEdit> edits = single_edits(job, plan);
  add_switches(edits, job, library);
  return edits;
}

Plan plan_with_stated_dp(const Plan& before, const JudgedPlan& changed) {
  Plan plan = changed.plan;
  plan.dp = before.dp != 0 ? data_parallel_size(changed.job, plan) : plan.dp;
  return plan;
}

std::string framework_options_that_differ(const FrameworkProfile& base,
                                          const FrameworkProfile& changed) {
  std::string text;
  for (const std::string& field : profile_field_names()) {
    const std::string value = profile_field_text(changed, field);
    if (value != profile_field_text(base, field)) {
      text.append(" --framework-option ").append(field).append("=").append(value);
    }
  }
  return text;
}

std::string difference_text(const Job& job, const Plan& plan, const Job& changed_job,
                            const Plan& changed_plan) {
  std::string text;
  const auto add = [&text](std::string_view name, const std::string& from, const std::string& to) {
    if (from != to) {
      text.append(text.empty() ? "" : ", ").append(name).append(" ");
      text.append(from).append(" -> ").append(to);
    }
  };
  const auto split_text = [](const Plan& of) {
    std::string split = "even";
    if (!of.layers_per_chunk.empty()) {
      split = std::to_string(of.layers_per_chunk.front());
      split.append(" first, ").append(std::to_string(of.layers_per_chunk.back())).append(" last");
    }
    return split;
  };
  for (const PlanSize& size : kPlanSizes) {
    if (size.name != "dp") {
      add(size.name, std::to_string(plan.*size.field), std::to_string(changed_plan.*size.field));
    }
  }
  add("sequence_parallel", plan.sequence_parallel ? "on" : "off",
      changed_plan.sequence_parallel ? "on" : "off");
  add("schedule", std::string(name_of(plan.schedule)), std::string(name_of(changed_plan.schedule)));
  add("layers_per_chunk", split_text(plan), split_text(changed_plan));
  add("cp_method", std::string(name_of(plan.cp_method)),
      std::string(name_of(changed_plan.cp_method)));
  add("recompute", recompute_text(plan.recompute), recompute_text(changed_plan.recompute));
  for (const auto& [name, field] : {std::pair{"grad_dtype", &Plan::grad_dtype},
                                    std::pair{"exp_avg_dtype", &Plan::exp_avg_dtype},
                                    std::pair{"exp_avg_sq_dtype", &Plan::exp_avg_sq_dtype}}) {
    add(name, std::string(name_of(plan.*field)), std::string(name_of(changed_plan.*field)));
  }
  add("offload_optimizer", percent(plan.offload.optimizer),
      percent(changed_plan.offload.optimizer));
  add("offload_parameters", plan.offload.parameters ? "on" : "off",
      changed_plan.offload.parameters ? "on" : "off");
  add("offload_activations", plan.offload.activations ? "on" : "off",
      changed_plan.offload.activations ? "on" : "off");
  for (const std::string& field : profile_field_names()) {
    add(field, profile_field_text(job.profile, field),
        profile_field_text(changed_job.profile, field));
  }
  return text;
}

namespace {

// --export of the first change that helps, of the plan itself where none does.
void export_changed(const Options& options, const AdviseReport& report, const Library& library) {
  const std::vector<Advice>& singles = report.result.singles;
  Question question = report.question;
  std::string command = command_text(options, "advise");
  if (!singles.empty()) {
    const JudgedPlan& changed = singles.front().changed;
    question.job = changed.job;
    question.plan = plan_with_stated_dp(report.question.plan, changed);
    command = command_of(report, changed);
  }
  export_answer(options, question, command, library);
}

// Thousands of changes of a large plan take seconds.
void find_advice(AdviseReport& report, const AdviceOptions& advice) {
  const Question& question = report.question;
  ProgressRow progress;
  progress.tell("trying changes of the plan and pairs of them");
  report.result = advise(question.job, question.plan, report.edits, advice);
  if (given(report.options, "scaling") && report.prediction.has_numbers()) {
    progress.tell("how memory and time move along every axis");
    report.scaling = scaling_tables(question.job, question.plan);
  }
}

}  // namespace

ExitCode run_advise(const Arguments& arguments) {
  const Options options = parse_options("advise", arguments);
  if (given(options, "help")) {
    return run_help({"advise"});
  }
  refuse_positional(options);
  const Library library = library_of(options);
  AdviseReport report = {.options = with_plan_fields(options),
                         .question = question_of(options, library),
                         .rule = memory_rule_of(options)};
  const Job& job = report.question.job;
  const Plan& plan = report.question.plan;
  Output output(text_or(options, "out", ""));
  for (const std::string& warning : report.question.warnings) {
    print_message("warning: " + warning);
  }
  if (report.question.run && !report.question.run->reading.unsupported.empty()) {
    throw InputError(report.question.run->file + ": " + report.question.run->reading.unsupported);
  }
  report.prediction = predict(job, plan, report.rule);
  report.edits = edits_of(job, plan, library);
  const AdviceOptions advice = {.rule = report.rule.is_asked ? FitRule::kShare : FitRule::kVerdict,
                                .share = search_options(report.rule),
                                .top = count_or(options, "top", 10)};
  find_advice(report, advice);
  export_changed(options, report, library);
  output.write(render(report, format_of(options), screen_for(options, output)));
  output.commit();
  return exit_code_of(report.prediction, fails_on(options));
}

}  // namespace shardplan
