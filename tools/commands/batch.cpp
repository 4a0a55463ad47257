#include "tools/commands/batch.h"

#include <exception>
#include <new>
#include <set>

#include "data/read/case_line.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/verdict.h"
#include "tools/options/case_file.h"
#include "tools/options/question.h"
#include "tools/report/csv.h"
#include "tools/report/json.h"
#include "tools/report/output.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

struct Tally {
  std::int64_t lines = 0;
  std::int64_t bad = 0;        // the user's mistakes
  std::int64_t too_large = 0;  // for this host's memory
  std::int64_t bugs = 0;       // ours
  std::string first_problem;
  std::set<std::string> warned;  // each once
};

// One line must not end a batch, whatever is wrong with it: the one place besides main that
// catches.
BatchAnswer answer_line(const std::string& text, const std::string& place, const Library& library,
                        Tally& tally) {
  BatchAnswer answer;
  try {
    const Case question = read_case(text, place, library);
    for (const std::string& warning : question.warnings) {
      if (tally.warned.insert(warning).second) {
        print_message("warning: " + warning);
      }
    }
    answer.id = question.id;
    answer.framework = question.framework;
    answer.prediction = predict_case(question);
    return answer;
  } catch (const InputError& problem) {
    ++tally.bad;
    answer.prediction.reason = problem.what();
  } catch (const std::bad_alloc&) {
    ++tally.too_large;
    answer.prediction.reason = place + ": out of host memory";
  } catch (const std::exception& problem) {
    ++tally.bugs;
    answer.prediction.reason = place + ": internal error: " + problem.what();
  }
  answer.id = case_id_of(text);
  answer.prediction.status = PredictedStatus::kError;
  answer.prediction.memory = {};
  if (tally.first_problem.empty()) {
    tally.first_problem = answer.prediction.reason;
  }
  return answer;
}

// Fixed columns, so that lines can be written as they come.
std::string text_line(const BatchAnswer& answer) {
  const Prediction& prediction = answer.prediction;
  std::string numbers(30, ' ');
  if (prediction.has_numbers()) {
    const MemoryEstimate& memory = prediction.memory;
    const StageMemory& worst = memory.stages.at(static_cast<std::size_t>(memory.worst_stage));
    numbers = padded_left(gib(worst.allocated_bytes), 9) +
              padded_left(gib(worst.device_used_bytes), 11) +
              padded_left(fixed(prediction.time.total_s, 3), 10);
  }
  return padded_left(std::to_string(answer.line), 6) + "  " +
         padded_right(verdict_name(prediction), 12) + numbers + "  " + one_line(answer.id) +
         (prediction.reason.empty() ? "" : ": " + one_line(prediction.reason)) + "\n";
}

std::string heading(Format format) {
  switch (format) {
    case Format::kTable: return "  line  status      allocated device used    step s  id (GiB)\n";
    case Format::kCsv: return csv_header(batch_table({}));
    case Format::kJson: return "";
  }
  return "";
}

std::string render(const BatchAnswer& answer, Format format) {
  switch (format) {
    case Format::kTable: return text_line(answer);
    case Format::kCsv: return csv_rows(batch_table(answer));
    case Format::kJson: return batch_json(answer);
  }
  return "";
}

Tally answer_file(const std::string& path, const Library& library, Format format, Output& output) {
  CaseFile file(path);
  Tally tally;
  output.write(heading(format));
  for (CaseText line; !output.abandoned() && file.next(line);) {
    ++tally.lines;
    BatchAnswer answer = answer_line(line.text, line.place(), library, tally);
    answer.line = line.line;
    output.write(render(answer, format));
  }
  return tally;
}

}  // namespace

ExitCode run_batch(const Arguments& arguments) {
  const Options options = parse_options("batch", arguments);
  if (given(options, "help")) {
    return run_help({"batch"});
  }
  if (options.positional.size() != 1) {
    throw InputError("batch: expected one file of case lines, or - for standard input, found " +
                     std::to_string(options.positional.size()));
  }
  const Library library = library_of(options);
  Output output(text_or(options, "out", ""));
  const Tally tally = answer_file(options.positional.front(), library, format_of(options), output);
  output.commit();
  const std::int64_t without_answer = tally.bad + tally.too_large + tally.bugs;
  if (without_answer == 0) {
    return ExitCode::kOk;
  }
  print_message("batch: " + std::to_string(without_answer) + " of " + std::to_string(tally.lines) +
                " lines have no answer; the first: " + tally.first_problem);
  return tally.bugs > 0        ? ExitCode::kBug
         : tally.too_large > 0 ? ExitCode::kEnvironment
                               : ExitCode::kInput;
}

}  // namespace shardplan
