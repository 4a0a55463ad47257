#include "tools/commands/search.h"

#include "data/read/json_message.h"
#include "search/walk/search.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/overlaps.h"
#include "tools/commands/search_answer.h"
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
#include "tools/report/text.h"
#include "tools/screen/job.h"
#include "tools/screen/progress.h"
#include "tools/screen/search.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shardplan {
namespace {

std::string render(const SearchReport& report, const SearchExtras& extras, const Options& options,
                   const Screen& screen) {
  Table table;
  switch (format_of(options)) {
    case Format::kTable:
      return asks_details(options) ? search_text(report, screen.paint).append(extras_text(extras))
                                   : search_screen(screen, report);
    case Format::kCsv:
      table = search_table(report);
      add_extras(extras, table);
      return csv_text(table);
    case Format::kJson: return with_extras(extras, search_json(report));
  }
  return "";
}

ExitCode exit_code_of(const SearchReport& report) {
  if (report.verdict == "unsupported") {
    return ExitCode::kInput;
  }
  return report.result.top.empty() || report.verdict == name_of(MemoryVerdict::kOver)
             ? ExitCode::kNegative
             : ExitCode::kOk;
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

// Before the answer of a search that was interrupted.
std::string stopped_words(const SearchResult& result) {
  return result.top.empty()
             ? "stopped: none of " + grouped(result.plans_priced) + " plans priced so far fits\n"
             : "stopped; the best of " + grouped(result.plans_priced) + " plans priced so far:\n";
}

// --export of the first plan, or of that of --pick.
void export_chosen(const Options& options, const SearchReport& report, const Library& library) {
  if (!given(options, "export")) {
    return;
  }
  if (report.result.top.empty()) {
    print_message("--export: nothing is written, no plan fits");
    return;
  }
  const Plan& plan = report.chosen().plan;
  Question question;
  question.job = report.job;
  question.plan = plan;
  question.given = plan_field_names();
  question.run = report.run;
  export_answer(options, question, report.command_of(plan), library);
}

}  // namespace

ExitCode run_search(const Arguments& arguments) {
  Options options = parse_options("search", arguments);
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
  SearchQuestion question = search_question_of(options, library);
  if (given(options, "list-axes")) {
    return list_axes(options, question);
  }
  SearchReport report;
  report.rule = memory_rule_of(options);
  report.options = search_options(report.rule);
  report.run = question.run;
  report.estimate_command = question.estimate_command;
  report.options.top = count_or(options, "top", report.options.top);
  read_search_options(options, report.options);
  Output output(text_or(options, "out", ""));
  for (const std::string& warning : question.warnings) { print_message("warning: " + warning); }
  // A file is written whole or not at all: there SIGINT ends the program.
  std::optional<InterruptFlag> interrupt;
  if (!given(options, "out")) {
    interrupt.emplace();
    report.options.stop = &interrupt->is_set();
  }
  std::optional<ProgressRow> progress(std::in_place);
  report.options.progress = [&](const SearchProgress& so_far) { progress->tell(so_far); };
  std::unique_ptr<PriceTables> prices;
  report.switched_on = open_overlaps(options, question, library);
  const Options asked = options;
  while (true) {
    options = with_switches(asked, report.switched_on);
    question = search_question_of(options, library);
    report.job = question.job;
    report.network = network_words(report.job.cluster);
    prices = std::make_unique<PriceTables>(report.job, report.options.threads);
    report.result = search_plans(report.job, question.space, report.options, *prices);
    if (!report.result.top.empty() || report.switched_on.empty() || report.result.was_stopped) {
      break;
    }
    // A switch may need another choice of the plan, or memory.
    report.result.plans_distinct == 0 ? report.switched_on.pop_back() : report.switched_on.clear();
  }
  if (report.result.was_stopped) {
    progress.reset();
    output.write(stopped_words(report.result));
    if (!report.result.top.empty()) {
      report.verdict =
          name_of(verdict_of(report.job, report.result.top.front().memory, report.rule));
      output.write(render(report, {}, options, screen_for(options, output)));
    }
    return ExitCode::kInterrupted;
  }
  complete(report, question, options, library, *prices);
  const SearchExtras extras =
      search_extras(options, report.job, question.space, report.options, report.result);
  export_chosen(options, report, library);
  progress.reset();
  interrupt.reset();
  output.write(render(report, extras, options, screen_for(options, output)));
  output.commit();
  return exit_code_of(report);
}

}  // namespace shardplan
