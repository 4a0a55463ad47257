// shardplan why-oom: which tensor a run died of, and what would have avoided it.
#include "tools/commands/why_oom.h"

#include <algorithm>

#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/why_oom_changes.h"
#include "tools/commands/why_oom_match.h"
#include "tools/from/log.h"
#include "tools/options/case_file.h"
#include "tools/options/command_words.h"
#include "tools/options/machine_of_log.h"
#include "tools/report/report.h"
#include "tools/report/why_oom.h"
#include "tools/screen/progress.h"
#include "tools/screen/why_oom.h"

namespace shardplan {
namespace {

// The line of the file with this id; without an id the file must have one line.
Question question_of_case(const std::string& path, const std::string& id, const Library& library) {
  std::optional<Case> chosen;
  CaseFile file(path);
  for (CaseText line; file.next(line);) {
    if (!id.empty() && case_id_of(line.text) != id) {
      continue;
    }
    if (chosen) {
      throw InputError(line.place() + ": found a second case" +
                       (id.empty() ? ", expected one or --case-id" : " with the id " + id));
    }
    chosen = read_case(line.text, line.place(), library);
  }
  if (!chosen) {
    throw InputError(path + ": found no case" + (id.empty() ? "" : " with the id '" + id + "'"));
  }
  if (!chosen->supported) {
    throw InputError(path + ": /framework: found '" + chosen->framework +
                     "', expected one of the frameworks with a profile");
  }
  Question question;
  question.job = std::move(chosen->job);
  question.plan = std::move(chosen->plan);
  question.warnings = std::move(chosen->warnings);
  return question;
}

// A log that nothing stands beside may print its run itself.
Options with_run_of_log(Options options, const Library& library) {
  const std::string path = options.positional.front();
  if (given(options, "case") || given(options, "from") || given(options, "model") || path == "-") {
    return options;
  }
  TextFile log(path);
  std::vector<std::string> notes;
  if (!settings_from_log(log, notes, library, {.path = path})) {
    const bool has_gpu = given(options, "cluster") || given(options, "gpu");
    throw InputError(
        "why-oom: " + log.name() +
            ": found neither arguments of Megatron-LM nor a configuration of torchtitan, nor a "
            "command that starts a training" +
            (has_gpu ? "" : ", and no GPU,") +
            " in it, expected the run as --model NAME, --from FILE or --case FILE" +
            (has_gpu ? "" : " and --gpu NAME"),
        "shardplan why-oom " + shell_word(path) + " --from train.sh" +
            (has_gpu ? "" : " --cluster 1x8-h100"));
  }
  add_option(options, "from", path);
  return options;
}

Question asked(const Options& options, const Library& library) {
  if (!given(options, "case")) {
    if (given(options, "case-id")) {
      throw InputError("--case-id: found no --case beside it");
    }
    return question_of(options, library);
  }
  // The case line says all of it: an option beside it would be dropped silently.
  for (const OptionRow* row : options_of("why-oom")) {
    const bool is_allowed = row->name.starts_with("case") || row->group == "Output";
    if (!is_allowed && given(options, row->name)) {
      throw InputError("--" + row->name + ": found beside --case, expected one of the two");
    }
  }
  return question_of_case(text_or(options, "case", ""), text_or(options, "case-id", ""), library);
}

// The run's own card, where the messages that name one agree; the least that other processes left.
void take_capacity(Question& question, const std::vector<OomEvent>& events) {
  const OomEvent* found = nullptr;
  for (const OomEvent& event : events) {
    if (!event.capacity) {
      continue;
    }
    if (found != nullptr && event.capacity->text != found->capacity->text) {
      return;
    }
    found = found != nullptr && found->usable_bytes() <= event.usable_bytes() ? found : &event;
  }
  if (found != nullptr && !question.job.cluster.memory_limit_bytes) {
    question.job.cluster.memory_limit_bytes = found->usable_bytes();
  }
}

void warn_of_foreign_ranks(const std::vector<OomEvent>& events, const Question& question) {
  const std::int64_t num_ranks = question.job.cluster.world_size();
  for (const OomEvent& event : events) {
    if (event.rank.value_or(0) >= num_ranks) {
      print_message("warning: line " + std::to_string(event.line) + " of the log: found rank " +
                    std::to_string(*event.rank) + ", expected one of the " +
                    std::to_string(num_ranks) + " of this job: is it this run's log?");
    }
  }
}

std::string render(const WhyOomReport& report, const Screen& screen) {
  switch (format_of(report.options)) {
    case Format::kTable:
      return asks_details(report.options) ? why_oom_text(report) : why_oom_screen(screen, report);
    case Format::kCsv: return why_oom_csv(report);
    case Format::kJson: return why_oom_json(report);
  }
  return "";
}

bool has_match(const OomDiagnosis& diagnosis) {
  return !diagnosis.matches.empty() || diagnosis.eager_score_bytes > 0;
}

}  // namespace

ExitCode run_why_oom(const Arguments& arguments) {
  const Options words = parse_options("why-oom", arguments);
  if (given(words, "help")) {
    return run_help({"why-oom"});
  }
  if (words.positional.size() != 1) {
    throw InputError("why-oom: expected one log, or - for standard input, found " +
                         std::to_string(words.positional.size()),
                     "shardplan why-oom run.log --from train.sh --cluster 1x8-h100");
  }
  const Library library = library_of(words);
  std::vector<std::string> notes;
  const std::string& path = words.positional.front();
  const Options options = with_run_of_log(
      path == "-" ? words : with_machine_of_log(words, path, library, notes), library);
  WhyOomReport report = {.options = with_plan_fields(options),
                         .question = asked(options, library),
                         .prediction = {},
                         .log = options.positional.front(),
                         .diagnoses = {},
                         .host_oom_line = 0,
                         .wrong_size_line = 0,
                         .changes = {}};
  TextFile log = TextFile::or_standard_input(report.log);
  const OomLog read = read_oom_log(log);
  const std::vector<OomEvent>& events = read.events;
  Output output(text_or(options, "out", ""));
  for (const std::string& note : notes) { print_message(note); }
  for (const std::string& warning : report.question.warnings) {
    print_message("warning: " + warning);
  }
  if (options.least_ranks > 0) {  // commands of the answer say what the log's lower bound became
    report.options.values["num-gpus"] = {std::to_string(report.question.job.cluster.world_size())};
  }
  warn_of_foreign_ranks(events, report.question);
  report.host_oom_line = read.host_oom_line;
  report.wrong_size_line = read.wrong_size_line;
  report.cluster_capacity_bytes = device_capacity_bytes(report.question.job.cluster);
  take_capacity(report.question, events);
  report.prediction = predict_question(report.question, {});
  if (!report.prediction.has_numbers()) {
    throw InputError("why-oom: the plan cannot be estimated: " + report.prediction.reason);
  }
  report.diagnoses = diagnose(events, report.question, report.prediction.memory);
  if (!report.diagnoses.empty()) {
    ProgressRow progress;
    progress.tell("trying changes of the plan and more GPUs");
    find_changes(report, library);
  }
  output.write(render(report, screen_for(options, output)));
  output.commit();
  return std::ranges::any_of(report.diagnoses, has_match) ? ExitCode::kOk : ExitCode::kNegative;
}

}  // namespace shardplan
