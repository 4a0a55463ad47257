#include "tools/commands/search.h"

#include "data/frameworks/framework.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "search/walk/search.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/other_sizes.h"
#include "tools/commands/simplest_plan.h"
#include "tools/commands/sweep.h"
#include "tools/export/export.h"
#include "tools/options/axes.h"
#include "tools/options/plan_words.h"
#include "tools/options/search_question.h"
#include "tools/report/csv.h"
#include "tools/report/json.h"
#include "tools/report/report.h"
#include "tools/report/search_extras.h"
#include "tools/report/search_table.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace shardplan {
namespace {

std::string render(const SearchReport& report, const SearchExtras& extras, Format format,
                   const Paint& paint) {
  Table table;
  switch (format) {
    case Format::kTable: return search_text(report, paint).append(extras_text(extras));
    case Format::kCsv:
      table = search_table(report);
      add_extras(extras, table);
      return csv_text(table);
    case Format::kJson: return with_extras(extras, search_json(report));
  }
  return "";
}

// What no plan changes, such as the model.
bool refuses_every_plan(const Job& job) {
  return std::ranges::any_of(validity_rules(job.profile), [&](const ValidityRule& rule) {
    return rule.reads.empty() && rule.broken(job, Plan{});
  });
}

// Frameworks that refuse nothing of the job itself; a formula trains nothing.
std::vector<std::string> other_frameworks(Job job, const Library& library) {
  std::vector<std::string> names;
  for (const std::string& name : library.framework_names()) {
    job.profile = library.framework(name);
    const bool is_older = name.find('@') != std::string::npos;
    if (!is_older && job.profile.memory_model != MemoryModel::kFujii2024 &&
        !refuses_every_plan(job)) {
      names.push_back(name);
    }
  }
  return names;
}

// Why no plan is valid.
std::string reason_of(const SearchReport& report, const Library& library) {
  std::string reason = why_invalid(report.job, report.result.nearest).value().message;
  if (!report.run && refuses_every_plan(report.job)) {
    const std::vector<std::string> others = other_frameworks(report.job, library);
    reason += others.empty() ? "" : "; modelled with --framework " + joined(others);
  }
  return reason;
}

ExitCode list_axes(const Options& options, const SearchQuestion& question) {
  constexpr std::size_t kShortList = 8;
  const Format format = format_of(options);
  const Table table =
      axes_table(question.job, question.run,
                 format == Format::kTable ? kShortList : std::numeric_limits<std::size_t>::max());
  Output output(text_or(options, "out", ""));
  switch (format) {
    case Format::kTable: output.write(table_text(table)); break;
    case Format::kCsv: output.write(csv_text(table)); break;
    case Format::kJson: output.write(table_json(table)); break;
  }
  output.commit();
  return ExitCode::kOk;
}

// How the same plan is run, beside overlaps. What changes results stays as it is: types, recipes,
// determinism.
constexpr auto kOffered = std::to_array<std::string_view>(
    {"attention_backend", "compile", "cross_entropy", "fused_optimizer",
     "gradient_accumulation_fusion", "launch_blocking", "masked_softmax_fusion", "moe_dispatcher",
     "moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion", "recompute_allgather",
     "reshard_after_forward", "scatter_gather_sends", "swiglu"});

bool is_offered(const ProfileOption& option) {
  return (option.name.find("overlap") != std::string::npos ||
          std::ranges::find(kOffered, option.name) != kOffered.end()) &&
         !takes_uncounted_memory(option);
}

// Those with which the plan is faster by more than this share, one on top of the other.
constexpr double kWorthNaming = 0.005;

std::optional<FasterSwitches> faster_switches(Job job, const RankedPlan& best,
                                              const SearchOptions& options,
                                              const Library& library) {
  FasterSwitches faster = {.options = {}, .step_time_s = best.time.total_s};
  for (const ProfileOption& option : profile_options(library, library.key_of(job.profile))) {
    if (!is_offered(option)) {
      continue;
    }
    std::string fastest;  // value of the option
    for (const std::string& value : other_values(job.profile, option)) {
      Job changed = job;
      apply_option(changed.profile, option.name, value, library);
      if (why_invalid(changed, best.plan)) {
        continue;
      }
      const double step_time_s = estimate_step_time(changed, best.plan).total_s;
      if (step_time_s < (1 - kWorthNaming) * faster.step_time_s &&
          fits(changed, estimate_memory(changed, best.plan), options)) {
        job = changed;
        fastest = value;
        faster.step_time_s = step_time_s;
      }
    }
    if (!fastest.empty()) {
      faster.options.push_back(option.name + "=" + fastest);
    }
  }
  return faster.options.empty() ? std::nullopt : std::optional(faster);
}

// --export of the first plan.
void export_first(const Options& options, const SearchReport& report, const Library& library) {
  if (!given(options, "export")) {
    return;
  }
  if (report.result.top.empty()) {
    print_message("--export: nothing is written, no plan fits");
    return;
  }
  const Plan& plan = report.result.top.front().plan;
  Question question;
  question.job = report.job;
  question.plan = plan;
  question.given = plan_field_names();
  question.run = report.run;
  export_answer(options, question, report.command_of(plan), library);
}

}  // namespace

ExitCode run_search(const Arguments& arguments) {
  const Options options = parse_options("search", arguments);
  if (given(options, "help")) {
    return run_help({"search"});
  }
  refuse_positional(options);
  const Library library = library_of(options);
  if (!given(options, "from")) {
    required_text(options, "global-batch");
  }
  if (given(options, "export") && (is_sweep(options) || given(options, "list-axes"))) {
    throw InputError("--export: found a question without one first plan, expected one cluster");
  }
  if (is_sweep(options)) {
    return run_sweep(options, library);
  }
  const SearchQuestion question = search_question_of(options, library);
  if (given(options, "list-axes")) {
    return list_axes(options, question);
  }
  SearchReport report;
  report.job = question.job;
  report.options = memory_rule_of(options).share;
  report.estimate_command = question.estimate_command;
  report.run = question.run;
  report.options.top = count_or(options, "top", report.options.top);
  read_search_options(options, report.options);
  Output output(text_or(options, "out", ""));
  for (const std::string& warning : question.warnings) { print_message("warning: " + warning); }
  PriceTables prices(report.job, report.options.threads);
  report.result = search_plans(report.job, question.space, report.options, prices);
  if (report.result.plans_distinct == 0 && report.result.plans_in_space > 0) {
    report.reason = reason_of(report, library);
  }
  if (!report.result.top.empty()) {
    const RankedPlan& best = report.result.top.front();
    report.evidence = evidence_of(report.job, best.plan, best.memory, library);
    report.switches = faster_switches(report.job, best, report.options, library);
    if (!given(options, "axes")) {  // whose searches are long
      report.simplest = simplest_tied(report.job, question.space, report.options, best, prices);
    }
  }
  report.other_sizes = other_sizes(options, question, report.options, report.result, library);
  const SearchExtras extras =
      search_extras(options, report.job, question.space, report.options, report.result);
  export_first(options, report, library);
  output.write(render(report, extras, format_of(options), paint_for(options, output)));
  output.commit();
  return report.result.top.empty() ? ExitCode::kNegative : ExitCode::kOk;
}

}  // namespace shardplan
