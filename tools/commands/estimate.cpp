#include "tools/commands/estimate.h"

#include "data/read/input_error.h"
#include "data/read/json_message.h"
#include "estimator/answer/step_limit.h"
#include "tools/commands/assumptions.h"
#include "tools/commands/command.h"
#include "tools/commands/find_max.h"
#include "tools/commands/help.h"
#include "tools/commands/nearest_run.h"
#include "tools/commands/program_report.h"
#include "tools/commands/support.h"
#include "tools/commands/verdict.h"
#include "tools/export/export.h"
#include "tools/options/command_words.h"
#include "tools/options/question.h"
#include "tools/report/csv.h"
#include "tools/report/estimate_table.h"
#include "tools/report/json.h"
#include "tools/report/report.h"
#include "tools/report/text.h"
#include "tools/report/trace.h"
#include "tools/screen/estimate.h"
#include "tools/screen/job.h"

namespace shardplan {
namespace {

std::string render(const EstimateReport& report, const Options& options, const Screen& screen) {
  const bool is_detailed = asks_details(options);
  switch (format_of(options)) {
    case Format::kTable:
      return is_detailed ? estimate_text(report, screen.paint) : estimate_screen(screen, report);
    case Format::kCsv: return csv_text(estimate_table(report));
    case Format::kJson: return estimate_json(report);
  }
  return "";
}

StepComparison limit_of(const Question& question) {
  const std::optional<Job> best = without_losses(question.job);
  if (!best) {
    throw InputError("--limit: found no measured rates of " + question.job.cluster.gpu.id +
                     ", expected a GPU that `shardplan calibrate --time` has measured");
  }
  return {.limit = step_account(*best, question.plan),
          .estimate = step_account(question.job, question.plan)};
}

// Appears complete or not at all.
void write_trace(const Question& question, const std::string& path) {
  constexpr std::int64_t kMostActions = 4'000'000;
  const std::int64_t actions = num_actions(question.job, question.plan);
  if (actions > kMostActions) {
    throw InputError("--trace: found a step of " + std::to_string(actions) +
                     " actions, expected at most " + std::to_string(kMostActions));
  }
  const StepTrace trace = step_trace(question.job, question.plan);
  Output file(path);
  file.write(step_trace_json(question, trace));
  file.commit();
  if (const std::string note = trace_note(trace); !note.empty()) {
    print_message(path + ": " + note);
  }
}

// The program that the options ask for, and what is predicted for as many microbatches.
struct ShownProgram {
  Prediction prediction;
  Program program;
};

// Says so where it is not of all microbatches.
ShownProgram shown_program(const EstimateReport& report, const std::string& option) {
  const Question few = with_few_microbatches(report.question, option);
  ShownProgram shown = {.prediction = predict_question(few, report.rule), .program = {}};
  shown.program = program_of(few, shown.prediction, option);
  if (few.job.global_batch < report.question.job.global_batch) {
    print_message("warning: --" + option + ": shows a step of " +
                  grouped(num_microbatches(few.job, few.plan)) + " microbatches, not " +
                  grouped(num_microbatches(report.question.job, report.question.plan)) +
                  ": those left out repeat the middle");
  }
  return shown;
}

// What not every format can show.
void refuse_formats(const Options& options) {
  if (given(options, "program") && format_of(options) != Format::kTable) {
    throw InputError("--program: found --format " + text_or(options, "format", "") +
                     ", expected table");
  }
  for (const char* name : {"explain", "limit"}) {
    if (given(options, name) && format_of(options) == Format::kCsv) {
      throw InputError("--" + std::string(name) + ": found --format csv, expected table or json");
    }
  }
}

// Fills in what the options ask about the question.
void answer(EstimateReport& report, const Options& options, const Library& library) {
  if (given(options, "find-max")) {
    report.maximum = find_max(report.question, text_or(options, "find-max", ""), report.rule);
  }
  report.network = network_words(report.question.job.cluster);
  report.detail = given(options, "explain") ? Detail::kRows : Detail::kTotals;
  report.prediction = predict_question(report.question, report.rule);
  report.nearest = nearest_run(report, options, library);
  report.assumptions = assumptions_of(report.question, library, report.prediction, report.rule);
  if (report.prediction.has_numbers()) {
    report.evidence =
        evidence_of(report.question.job, report.question.plan, report.prediction.memory, library);
  }
  if (report.prediction.has_numbers() && report.detail == Detail::kRows) {
    report.account = step_account(report.question.job, report.question.plan);
    report.numbers = stated_numbers(report.question.job, report.question.plan, library);
  }
  if (report.prediction.has_numbers() && given(options, "limit")) {
    report.limit = limit_of(report.question);
  }
  if (report.prediction.has_numbers() && asks_cost(options)) {
    report.cost = cost_of(report.question, report.prediction, options, library);
  }
}

// Below a plan that its framework does not support, for people: those that take it.
std::string other_frameworks(const Question& question, const Prediction& prediction,
                             const Options& options, const Library& library, const Screen& screen) {
  if (prediction.status != PredictedStatus::kUnsupported || question.run ||
      format_of(options) != Format::kTable) {
    return "";
  }
  const std::vector<std::string> names = frameworks_that_take(options, library);
  return screen_line(screen, "instead",
                     names.empty() ? "no framework here takes this plan: shardplan support"
                                   : "--framework " + joined(names) + ": shardplan support");
}

}  // namespace

ExitCode run_estimate(const Arguments& arguments) {
  const Options options = parse_options("estimate", arguments);
  if (given(options, "help")) {
    return run_help({"estimate"});
  }
  refuse_positional(options);
  const Library library = library_of(options);
  EstimateReport report = {.question = question_of(options, library),
                           .rule = memory_rule_of(options)};
  refuse_formats(options);
  Output output(text_or(options, "out", ""));
  for (const std::string& warning : report.question.warnings) {
    print_message("warning: " + warning);
  }
  answer(report, options, library);
  const std::string timeline = text_or(options, "memory-timeline", "");
  const bool shows_program = given(options, "program");
  std::optional<ShownProgram> shown;
  if (report.prediction.has_numbers() && (shows_program || !timeline.empty())) {
    shown = shown_program(report, shows_program ? "program" : "memory-timeline");
  }
  export_answer(options, report.question, command_text(options, "estimate"), library);
  output.write(render(report, options, screen_for(options, output)));
  output.write(other_frameworks(report.question, report.prediction, options, library,
                                screen_for(options, output)));
  if (shown && shows_program) {
    const MemoryEstimate& memory = shown->prediction.memory;
    output.write(
        program_text(memory.stages[static_cast<std::size_t>(memory.worst_stage)], shown->program));
  }
  if (shown && !timeline.empty()) {
    Output file(timeline);
    file.write(csv_text(memory_timeline(shown->program)));
    file.commit();
  }
  if (report.prediction.has_numbers() && given(options, "trace")) {
    write_trace(report.question, text_or(options, "trace", ""));
  }
  output.commit();
  return exit_code_of(report.prediction, fails_on(options));
}

}  // namespace shardplan
