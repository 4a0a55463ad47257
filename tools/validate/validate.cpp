// shardplan validate: case lines in, what real runs of them gave out.
#include "tools/validate/validate.h"

#include <cmath>

#include "tools/commands/help.h"
#include "tools/options/option_values.h"
#include "tools/options/question.h"
#include "tools/report/validate_rows.h"
#include "tools/validate/stop_signals.h"
#include "tools/validate/validation.h"
#include "tools/validate/workers.h"

namespace shardplan {
namespace {

// "3/16": one rank of a plan.
void read_simulated(ValidateSettings& settings, const std::string& word) {
  const std::size_t slash = word.find('/');
  constexpr std::int64_t kMostRanks = 1 << 20;
  if (slash == std::string::npos) {
    throw InputError("--simulate-rank: found '" + word + "', expected R/W, such as 3/16");
  }
  const std::int64_t world =
      parse_count(word.substr(slash + 1), 1, kMostRanks, "--simulate-rank, after the slash");
  settings.simulated_world = world;
  settings.request.simulated_rank =
      parse_count(word.substr(0, slash), 0, world - 1, "--simulate-rank, before the slash");
}

ValidateSettings settings_of(const Options& options, const Arguments& arguments) {
  ValidateSettings settings = {.command = "shardplan validate"};
  for (const std::string& word : arguments) { settings.command += " " + word; }
  settings.backend = text_or(options, "backend", "cuda");
  settings.data_folder = text_or(options, "data", "");
  settings.format = format_of(options);
  settings.runs_anyway = given(options, "force");
  settings.checks_against_host = given(options, "check-against-host");
  RunRequest& request = settings.request;
  request.steps = count_or(options, "steps", 10);
  request.warmup = count_or(options, "warmup", 3);
  request.seed = static_cast<std::uint64_t>(count_or(options, "seed", 1));
  if (given(options, "memory-limit")) {
    request.memory_limit_bytes = count_or(options, "memory-limit", 0);
  }
  if (given(options, "fp32")) {
    request.precision = RunPrecision::kFloat;
  }
  if (given(options, "check-against-host")) {
    request.weights = InitialWeights::kReference;
  }
  request.is_traced = given(options, "trace");
  if (given(options, "simulate-rank")) {
    read_simulated(settings, text_or(options, "simulate-rank", ""));
  }
  if (given(options, "find-max")) {
    settings.find_max = value_of<SizeAxis>(text_or(options, "find-max", ""));
    if (settings.backend == "host" && !request.memory_limit_bytes) {
      throw InputError(
          "--find-max: found no --memory-limit, which --backend host needs: the host's memory is "
          "not that of the case's GPUs");
    }
  }
  if (given(options, "simulate-rank") && given(options, "check-against-host")) {
    throw InputError(
        "--check-against-host: found --simulate-rank as well, whose losses mean nothing");
  }
  if (given(options, "resume") && !given(options, "journal")) {
    throw InputError("--resume: found no --journal, expected the file of the batch that stopped");
  }
  return settings;
}

WorkerSettings worker_settings(const Options& options) {
  WorkerSettings settings{.on_gpus = text_or(options, "backend", "cuda") == "cuda",
                          .supervisor = {},
                          .launched = launched_rank()};
  settings.supervisor.timeout =
      std::chrono::milliseconds(std::llround(number_or(options, "timeout", 120) * 1000));
  if (settings.supervisor.timeout.count() == 0) {
    throw InputError("--timeout: found '" + text_or(options, "timeout", "") +
                     "', expected a number above 0, at least 0.001");
  }
  settings.supervisor.grace = std::min(settings.supervisor.grace, settings.supervisor.timeout);
  return settings;
}

// The worst of all lines decides.
struct Tally {
  std::int64_t bad_lines = 0;
  std::int64_t negative = 0;
  std::int64_t dead = 0;
  std::string first_problem;

  void add(const ResultSummary& row, bool fails_on_oom) {
    if (!row.status) {
      ++bad_lines;
      first_problem = first_problem.empty() ? row.reason : first_problem;
      return;
    }
    switch (*row.status) {
      case RunStatus::kOk: negative += row.host_check_failed ? 1 : 0; break;
      case RunStatus::kOom: negative += fails_on_oom ? 1 : 0; break;
      case RunStatus::kInvalid:
      case RunStatus::kMoeOverflow: ++negative; break;
      case RunStatus::kTimeout:
      case RunStatus::kCrash:
      case RunStatus::kNcclError: ++dead; break;
    }
  }
  ExitCode exit_code() const {
    return bad_lines > 0  ? ExitCode::kInput
           : dead > 0     ? ExitCode::kDeadRank
           : negative > 0 ? ExitCode::kNegative
                          : ExitCode::kOk;
  }
};

// Not where nothing ran.
void write_traces(const RunTraces& traces, const std::string& path, Output& file) {
  if (traces.empty()) {
    print_message("validate: --trace: no plan ran, nothing is written to " + path);
    return;
  }
  file.write(traces.text());
  file.commit();
  if (const std::string note = traces.note(); !note.empty()) {
    print_message(path + ": " + note);
  }
}

}  // namespace

ExitCode run_validation(const Arguments& arguments) {
  const Options options = parse_options("validate", arguments);
  if (given(options, "help")) {
    return run_help({"validate"});
  }
  if (options.positional.size() != 1) {
    throw InputError("validate: expected one file of case lines, or - for standard input, found " +
                     std::to_string(options.positional.size()));
  }
  const WorkerSettings workers = worker_settings(options);
  if (workers.launched && workers.launched->rank > 0) {
    return run_as_agent(workers);
  }
  const ValidateSettings settings = settings_of(options, arguments);
  const Library library = library_of(options);
  CaseFile file(options.positional.front());
  Output output(text_or(options, "out", ""));
  std::optional<Output> trace;
  if (given(options, "trace")) {
    trace.emplace(text_or(options, "trace", ""));
  }
  WorkerPool pool(workers);
  StopFlags& stop = watch_stop_signals();  // after the outputs, whose handlers end no workers
  std::optional<ValidateJournal> journal;
  if (given(options, "journal")) {
    journal.emplace(text_or(options, "journal", ""), given(options, "resume"));
  }
  Validation validation(settings, pool.supervisor(), library, journal ? &*journal : nullptr, stop);
  Tally tally;
  output.write(validate_heading(settings.format));
  for (CaseText line; !output.abandoned() && file.next(line);) {
    const auto result = validation.result_of(line);
    if (!result) {
      print_message("validate: stopped by signal " + std::to_string(stop.signal));
      return static_cast<ExitCode>(128 + stop.signal);
    }
    tally.add(summary_of(*result), given(options, "fail-on-oom"));
    output.write(validate_row(*result, line.line, settings.format));
  }
  if (settings.format == Format::kTable) {
    output.write(validation.traces().account_text());
  }
  output.commit();
  if (trace) {
    write_traces(validation.traces(), text_or(options, "trace", ""), *trace);
  }
  if (tally.bad_lines > 0) {
    print_message("validate: " + std::to_string(tally.bad_lines) +
                  " lines cannot be read; the first: " + tally.first_problem);
  }
  return tally.exit_code();
}

}  // namespace shardplan
