// shardplan batch: case lines in, one answer per line out, in input order.
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "data/case_line.h"
#include "tools/command.h"
#include "tools/question.h"
#include "tools/report.h"
#include "tools/text.h"

namespace shardplan {
namespace {

struct Tally {
  std::int64_t lines = 0;
  std::int64_t bad = 0;   // the user's mistakes
  std::int64_t bugs = 0;  // ours
  std::string first_problem;
};

Prediction predict_case(const Case& question) {
  if (!question.supported) {
    return {.status = PredictedStatus::kUnsupported,
            .reason = "no profile for the framework '" + question.framework + "'"};
  }
  return predict(question.job, question.plan, {});
}

// One line must not end a batch, whatever is wrong with it: the one place besides main that
// catches.
BatchAnswer answer_line(const std::string& text, const std::string& place, const Library& library,
                        Tally& tally) {
  BatchAnswer answer;
  try {
    const Case question = read_case(text, place, library);
    answer.id = question.id;
    answer.framework = question.framework;
    answer.prediction = predict_case(question);
    return answer;
  } catch (const InputError& problem) {
    ++tally.bad;
    answer.prediction.reason = problem.what();
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
         padded_right(name_of(prediction.status), 12) + numbers + "  " + one_line(answer.id) +
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

// The next line without its end. Of a line that no reader accepts for its length, only the start is
// kept.
bool next_line(std::istream& input, std::string& text) {
  text.clear();
  std::streambuf& buffer = *input.rdbuf();
  constexpr int kEnd = std::char_traits<char>::eof();
  int letter = buffer.sbumpc();
  if (letter == kEnd) {
    return false;
  }
  for (; letter != kEnd && letter != '\n'; letter = buffer.sbumpc()) {
    if (static_cast<std::int64_t>(text.size()) <= kMaxJsonBytes) {
      text += static_cast<char>(letter);
    }
  }
  return true;
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

Tally answer_all(std::istream& input, const std::string& name, const Library& library,
                 Format format, Output& output) {
  Tally tally;
  output.write(heading(format));
  std::string text;
  for (std::int64_t line = 1; !output.abandoned() && next_line(input, text); ++line) {
    if (is_blank(text)) {
      continue;
    }
    ++tally.lines;
    BatchAnswer answer = answer_line(text, name + ":" + std::to_string(line), library, tally);
    answer.line = line;
    output.write(render(answer, format));
  }
  return tally;
}

void check_readable(const std::string& path) {
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem)) {
    throw InputError(path + ": found a directory, expected a file of case lines");
  }
}

Tally answer_file(const std::string& path, const Library& library, Format format, Output& output) {
  if (path == "-") {
    return answer_all(std::cin, "standard input", library, format, output);
  }
  check_readable(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw InputError(path + ": cannot be read: " + std::strerror(errno));
  }
  return answer_all(file, path, library, format, output);
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
  if (tally.bad + tally.bugs == 0) {
    return ExitCode::kOk;
  }
  print_message("batch: " + std::to_string(tally.bad + tally.bugs) + " of " +
                std::to_string(tally.lines) +
                " lines have no answer; the first: " + tally.first_problem);
  return tally.bugs > 0 ? ExitCode::kBug : ExitCode::kInput;
}

}  // namespace shardplan
