#include "tools/commands/explain.h"

#include <algorithm>
#include <array>
#include <vector>

#include "data/read/json_message.h"
#include "tools/commands/explain_terms.h"
#include "tools/commands/help.h"
#include "tools/options/options.h"
#include "tools/report/output.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

// The job of README.md, where none is asked for.
const Arguments kUsualJob = {"--model",
                             "llama3-8b",
                             "--cluster",
                             "1x8-h200",
                             "--framework",
                             "megatron",
                             "--tp",
                             "2",
                             "--pp",
                             "2",
                             "--micro-batch",
                             "1",
                             "--global-batch",
                             "64",
                             "--sequence-length",
                             "8192"};

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
  for (char& c : word) {
    c = c == ' ' || c == '-' ? '_' : c;
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return word;
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

std::string list_of_terms() {
  constexpr std::size_t kWidth = 78;
  std::string text = "usage: shardplan explain TERM [options of estimate]\n\n";
  std::string line;
  for (const Term* const term : all_terms()) {
    if (line.size() + term->name.size() + 1 > kWidth) {
      text += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(term->name);
  }
  return text + line + "\n";
}

// Words in lines of at most 78 columns behind a label of 10.
std::string paragraph(std::string_view label, const std::string& words) {
  constexpr std::size_t kLabel = 10;
  constexpr std::size_t kWidth = 78;
  std::string text;
  std::string line = padded_right(label, kLabel);
  std::size_t at = 0;
  while (at < words.size()) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    const std::string word = words.substr(at, end - at);
    if (line.size() + word.size() > kWidth && line.size() > kLabel) {
      text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = std::string(kLabel, ' ');
    }
    line += word + " ";
    at = end + 1;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return text + line + "\n";
}

std::string explained(const Term& term, const ExplainedJob& job, const std::string& name_of_job) {
  std::string text = std::string(term.name) + "\n" + paragraph("what", std::string(term.meaning));
  if (!term.formula.empty()) {
    text += paragraph("formula", std::string(term.formula));
  }
  if (term.numbers != nullptr && job.prediction.has_numbers()) {
    text += paragraph("here", term.numbers(job)) + paragraph("", "(" + name_of_job + ")");
  }
  if (!term.example.empty()) {
    text += paragraph("example", std::string(term.example));
  }
  return text;
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
  const bool is_usual = !given(options, "model") && !given(options, "from");
  if (is_usual) {
    options = parse_options("explain", kUsualJob);
  }
  const Library library = library_of(options);
  const Question question = question_of(options, library);
  const Prediction prediction = predict_question(question, memory_rule_of(options));
  const std::string name = is_usual ? "llama3-8b on 1x8-h200, tp 2, pp 2; give your own job's "
                                      "options for its numbers"
                                    : "the job of your options";
  output.write(explained(term, {.question = question, .prediction = prediction}, name));
  output.commit();
  return ExitCode::kOk;
}

}  // namespace shardplan
