// shardplan accuracy: every case line that carries `measured`, predicted and held against it. One
// bad line does not end it: besides main and batch the place that catches.
#include "tools/accuracy/accuracy.h"

#include <filesystem>

#include "tools/accuracy/case.h"
#include "tools/accuracy/known_runs.h"
#include "tools/accuracy/layouts.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/options/case_file.h"
#include "tools/options/question.h"
#include "tools/report/accuracy.h"
#include "tools/report/accuracy_csv.h"
#include "tools/report/known_runs.h"
#include "tools/report/layouts.h"
#include "tools/report/report.h"
#include "tools/screen/progress.h"

namespace shardplan {
namespace {

std::string render(const AccuracyReport& report, Format format) {
  switch (format) {
    case Format::kTable: return accuracy_text(report);
    case Format::kCsv: return accuracy_csv(report);
    case Format::kJson: return accuracy_json(report);
  }
  return "";
}

std::string render(const LayoutReport& report, Format format) {
  switch (format) {
    case Format::kTable: return layouts_text(report);
    case Format::kCsv: return layouts_csv(report);
    case Format::kJson: return layouts_json(report);
  }
  return "";
}

std::string render(const KnownRunsReport& report, Format format) {
  switch (format) {
    case Format::kTable: return known_runs_text(report);
    case Format::kCsv: return known_runs_csv(report);
    case Format::kJson: return known_runs_json(report);
  }
  return "";
}

std::string first_problem(const AccuracyReport& report) {
  for (const AccuracyCase& run : report.cases) {
    if (run.status == PredictedStatus::kError) {
      return run.reason;
    }
  }
  return "";
}

void add_line(AccuracyReport& report, const std::string& set, const CaseText& line,
              const Library& library) {
  try {
    const Case question = read_case(line.text, line.place(), library);
    if (question.measured) {
      report.cases.push_back(accuracy_case(question, set, library));
    } else {
      ++report.unmeasured;
    }
  } catch (const InputError& problem) {
    AccuracyCase unreadable;
    unreadable.set = set;
    unreadable.id = case_id_of(line.text);
    unreadable.framework = "unreadable";
    unreadable.reason = problem.what();
    report.cases.push_back(std::move(unreadable));
    ++report.unreadable;
  }
}

}  // namespace

AccuracyReport accuracy_report(const std::vector<std::string>& files, const Library& library) {
  AccuracyReport report;
  ProgressRow progress;
  for (const std::string& file : files) {
    const std::string set =
        file == "-" ? "standard input" : std::filesystem::path(file).stem().string();
    CaseFile lines(file);
    for (CaseText line; lines.next(line);) {
      progress.tell("predicting " + set + ", line " + std::to_string(line.line) + ", " +
                    std::to_string(report.cases.size()) + " runs so far");
      add_line(report, set, line, library);
    }
  }
  return report;
}

ExitCode run_accuracy(const Arguments& arguments) {
  const Options options = parse_options("accuracy", arguments);
  if (given(options, "help")) {
    return run_help({"accuracy"});
  }
  if (options.positional.empty()) {
    throw InputError("accuracy: expected files of case lines with \"measured\", found none");
  }
  const Library library = library_of(options);
  Output output(text_or(options, "out", ""));
  if (given(options, "known-runs") && given(options, "layouts")) {
    throw InputError("--layouts: found beside --known-runs, expected one of the two");
  }
  if (given(options, "known-runs")) {
    output.write(render(known_runs_report(options.positional, library), format_of(options)));
    output.commit();
    return ExitCode::kOk;
  }
  if (given(options, "layouts")) {
    output.write(render(layout_report(options.positional, library), format_of(options)));
    output.commit();
    return ExitCode::kOk;
  }
  const AccuracyReport report = accuracy_report(options.positional, library);
  output.write(render(report, format_of(options)));
  output.commit();
  if (report.unreadable > 0) {
    print_message("accuracy: " + std::to_string(report.unreadable) +
                  " lines cannot be read; the first: " + first_problem(report));
    return ExitCode::kInput;
  }
  return ExitCode::kOk;
}

}  // namespace shardplan
