#include "tools/commands/explain/explain.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "data/read/json_message.h"
#include "data/read/library.h"
#include "tools/commands/explain/terms.h"
#include "tools/commands/help.h"
#include "tools/options/options.h"
#include "tools/report/output.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::vector<const Term*> all_terms() {
  std::vector<const Term*> terms;
  for (const auto& group : {terms_of_memory(), terms_of_plans(), terms_of_answers()}) {
    for (const Term& term : group) { terms.push_back(&term); }
  }
  return terms;
}

// "Device used" and "--device-used" are device_used.
std::string as_name(std::string word) {
  word.erase(0, word.find_first_not_of('-'));
  for (char& c : word) { c = c == ' ' || c == '-' ? '_' : c; }
  return in_lower_case(word);
}

const Term& term_named(const std::string& word) {
  const std::string name = as_name(word);
  std::vector<std::string> names;
  for (const Term* const term : all_terms()) {
    if (term->name == name || term->others.find(" " + name + " ") != std::string_view::npos) {
      return *term;
    }
    names.emplace_back(term->name);
  }
  throw InputError("explain: found unknown term '" + word + "'" + suggestion(name, names) +
                   "; 'shardplan explain' lists all");
}

// Words in lines of at most 78 columns; `begin` stands in front of them, as wide as the indent.
std::string filled(const std::string& begin, const std::string& words) {
  constexpr std::size_t kWidth = 78;
  std::istringstream each(words);
  std::string text;
  std::string line = begin;
  for (std::string word; each >> word;) {
    if (line.size() > begin.size() && line.size() + 1 + word.size() > kWidth) {
      text += line + "\n";
      line = std::string(begin.size(), ' ');
    }
    line += (line.size() > begin.size() ? " " : "") + word;
  }
  return text + line + "\n";
}

std::string list_of_terms() {
  std::string names;
  for (const Term* const term : all_terms()) { names += std::string(term->name) + " "; }
  return "usage: shardplan explain TERM [options of estimate]\n\n" + filled("", names);
}

std::string paragraph(std::string_view label, const std::string& words) {
  constexpr std::int64_t kLabel = 10;
  return filled(padded_right(label, kLabel), words);
}

// Whether the options say anything of a job.
bool asks_job(const Options& options) {
  return std::ranges::any_of(options_of("explain"), [&](const OptionRow* row) {
    return row->group != "Output" && given(options, row->name);
  });
}

// What the user left open of a job: the model, machine and sizes of README.md's, where nothing is
// asked its plan, too.
Options with_usual_job(const Options& options) {
  std::vector<std::string> words = {"--model", "llama3-8b",         "--global-batch",
                                    "64",      "--sequence-length", "8192"};
  if (!given(options, "gpu")) {
    words.insert(words.end(), {"--cluster", "1x8-h200"});
  }
  if (!asks_job(options)) {
    words.insert(words.end(), {"--tp", "2", "--pp", "2"});
  }
  Options whole = parse_options("explain", words);
  if (given(options, "num-microbatches")) {
    whole.values.erase("global-batch");
  }
  for (const auto& [name, values] : options.values) { whole.values[name] = values; }
  return whole;
}

std::string explained(const Term& term, const ExplainedJob& job, const std::string& name) {
  std::string text = std::string(term.name) + "\n" + paragraph("what", std::string(term.meaning));
  if (!term.formula.empty()) {
    text += paragraph("formula", std::string(term.formula));
  }
  if (term.numbers != nullptr) {
    text +=
        paragraph("here", job.prediction.has_numbers() ? term.numbers(job)
                                                       : "no numbers: " + job.prediction.reason);
    text += paragraph("", "(" + name + ")");
  }
  if (!term.example.empty()) {
    text += paragraph("example", std::string(term.example));
  }
  return text;
}

std::string name_of_job(const Options& options) {
  if (!asks_job(options)) {
    return "llama3-8b on 1x8-h200, tp 2, pp 2; give your own job's options for its numbers";
  }
  std::string open;
  for (const char* const option : {"model", "cluster", "sequence-length", "global-batch"}) {
    const bool is_said =
        given(options, option) || given(options, "from") ||
        (option == std::string("cluster") && given(options, "gpu")) ||
        (option == std::string("global-batch") && given(options, "num-microbatches"));
    open += is_said ? "" : (open.empty() ? " --" : ", --") + std::string(option);
  }
  return open.empty() ? "the job of your options"
                      : "the job of your options, with README.md's for" + open;
}

}  // namespace

ExitCode run_explain(const Arguments& arguments) {
  Options options = parse_options("explain", arguments);
  if (given(options, "help")) {
    return run_help({"explain"});
  }
  if (text_or(options, "format", "table") != "table") {
    throw InputError("--format: found '" + text_or(options, "format", "") +
                     "', expected table, as explain has words alone");
  }
  Output output(text_or(options, "out", ""));
  if (options.positional.empty()) {
    output.write(list_of_terms());
    output.commit();
    return ExitCode::kOk;
  }
  std::string word;
  for (const std::string& each : options.positional) { word += (word.empty() ? "" : " ") + each; }
  const Term& term = term_named(word);
  options.positional.clear();
  const std::string name = name_of_job(options);
  if (!given(options, "from")) {
    options = with_usual_job(options);
  }
  const Library library = library_of(options);
  const Question question = question_of(options, library);
  for (const std::string& warning : question.warnings) { print_message("warning: " + warning); }
  const Prediction prediction = predict_question(question, memory_rule_of(options));
  output.write(explained(term, {.question = question, .prediction = prediction}, name));
  output.commit();
  return ExitCode::kOk;
}

}  // namespace shardplan
