// shardplan compare: which terms of two answers differ, and by how much.
#include "tools/commands/compare.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "data/frameworks/profile_fields.h"
#include "data/read/case_tuning.h"
#include "estimator/estimate.h"
#include "estimator/plan/parameters.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/verdict.h"
#include "tools/options/plan_words.h"
#include "tools/report/compare.h"
#include "tools/report/csv.h"
#include "tools/report/lines.h"
#include "tools/report/output.h"
#include "tools/report/report.h"
#include "tools/report/text.h"
#include "tools/screen/compare.h"

namespace shardplan {
namespace {

void add_words(Table& table, const std::string& kind, const std::string& name,
               const std::string& left, const std::string& right) {
  if (left != right) {
    table.rows.push_back({kind, name, left, right, std::monostate{}});
  }
}

// Bytes, counts, seconds.
template <class Number>
void add_numbers(Table& table, const std::string& kind, const std::string& name, Number left,
                 Number right) {
  if (left != right) {
    table.rows.push_back({kind, name, left, right, right - left});
  }
}

void add_job(Table& table, const Job& left, const Job& right) {
  const std::string kind = "job";
  add_words(table, kind, "model", left.model.name, right.model.name);
  add_numbers(table, kind, "parameters", count_parameters(left.model),
              count_parameters(right.model));
  add_words(table, kind, "cluster", left.cluster.name, right.cluster.name);
  add_numbers(table, kind, "num_gpus", left.cluster.world_size(), right.cluster.world_size());
  add_numbers(table, kind, "gpu_memory", device_capacity_bytes(left.cluster),
              device_capacity_bytes(right.cluster));
  add_numbers(table, kind, "sequence_length", left.sequence_length, right.sequence_length);
  add_numbers(table, kind, "global_batch", left.global_batch, right.global_batch);
  add_words(table, kind, "optimizer", std::string(name_of(left.optimizer)),
            std::string(name_of(right.optimizer)));
  add_words(table, kind, "trained", std::string(name_of(trained_parameters(left))),
            std::string(name_of(trained_parameters(right))));
  add_words(table, kind, "adapters", text_of(left.adapters), text_of(right.adapters));
  add_words(table, kind, "quantization", text_of(left.quantized), text_of(right.quantized));
  add_numbers(table, kind, "hidden_dropout", left.hidden_dropout, right.hidden_dropout);
  add_numbers(table, kind, "attention_dropout", left.attention_dropout, right.attention_dropout);
}

// "--tp 2 --pp 4" as its pairs.
std::map<std::string, std::string> pairs_of(const std::string& options) {
  std::map<std::string, std::string> pairs;
  std::string name;
  std::size_t start = 0;
  while (start < options.size()) {
    const std::size_t end = std::min(options.find(' ', start), options.size());
    const std::string word = options.substr(start, end - start);
    if (word.starts_with("--")) {
      name = word.substr(2);
      pairs[name] = "";
    } else {
      pairs[name] = word;
    }
    start = end + 1;
  }
  return pairs;
}

void add_plan(Table& table, const Plan& left, const Plan& right) {
  std::map<std::string, std::string> before = pairs_of(options_of_plan(left));
  std::map<std::string, std::string> after = pairs_of(options_of_plan(right));
  for (const auto& [name, value] : before) { after.try_emplace(name, "default"); }
  for (const auto& [name, value] : after) {
    before.try_emplace(name, "default");
    add_words(table, "plan", name, before[name], value);
  }
}

void add_profile(Table& table, const FrameworkProfile& left, const FrameworkProfile& right) {
  add_words(table, "profile", "name", left.name, right.name);
  add_words(table, "profile", "version", left.version, right.version);
  for (const std::string& name : profile_field_names()) {
    add_words(table, "profile", name, profile_field_text(left, name),
              profile_field_text(right, name));
  }
}

const StageMemory& worst_stage(const Prediction& prediction) {
  return prediction.memory.stages.at(static_cast<std::size_t>(prediction.memory.worst_stage));
}

void add_totals(Table& table, const StageMemory& left, const StageMemory& right) {
  add_numbers(table, "worst stage", "allocated", left.allocated_bytes, right.allocated_bytes);
  add_numbers(table, "worst stage", "reserved", left.reserved_bytes, right.reserved_bytes);
  add_numbers(table, "worst stage", "required", left.required_bytes, right.required_bytes);
  add_numbers(table, "worst stage", "device_used", left.device_used_bytes, right.device_used_bytes);
  add_words(table, "worst stage", "peak_moment", left.peak_moment(), right.peak_moment());
  for (std::size_t i = 0; i < kComponentNames.size(); ++i) {
    add_numbers(table, "component", std::string(kComponentNames[i]), left.components[i],
                right.components[i]);
  }
}

void add_rows(Table& table, const StageMemory& left, const StageMemory& right) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> bytes;
  for (const Row& row : left.rows) { bytes[row.name].first += row.total_bytes(); }
  for (const Row& row : right.rows) { bytes[row.name].second += row.total_bytes(); }
  for (const auto& [name, sides] : bytes) {
    add_numbers(table, "row", name, sides.first, sides.second);
  }
}

void add_time(Table& table, const StepTime& left, const StepTime& right) {
  add_numbers(table, "time", "step_time_s", left.total_s, right.total_s);
  add_numbers(table, "time", "tokens_per_s_per_gpu", left.tokens_per_s_per_gpu,
              right.tokens_per_s_per_gpu);
  add_numbers(table, "time", "mfu", left.mfu, right.mfu);
  for (const StepTimePart& part : kStepTimeParts) {
    add_numbers(table, "part of step", std::string(part.name) + "_s", left.*part.seconds,
                right.*part.seconds);
  }
}

// Drops what the options say of the key, --set and --framework-option among them.
void drop_key(Options& options, const std::string& key) {
  options.values.erase(key);
  for (const char* option : {"set", "framework-option"}) {
    std::vector<std::string> words = all_of(options, option);
    std::erase_if(words, [&](const std::string& word) {
      return option_name(word.substr(0, word.find('='))) == option_name(key);
    });
    if (words.empty()) {
      options.values.erase(option);
    } else {
      options.values[option] = words;
    }
  }
}

// Of the batch and of the machine one of two is said.
std::string counterpart(const std::string& name) {
  constexpr auto kPairs = std::to_array<std::pair<std::string_view, std::string_view>>(
      {{"global-batch", "num-microbatches"}, {"cluster", "gpu"}});
  for (const auto& [one, other] : kPairs) {
    if (name == one || name == other) {
      return std::string(name == one ? other : one);
    }
  }
  return "";
}

// Options of the job and the plan take one value; the others say how to read or to answer.
bool is_of_question(const OptionRow& row) {
  return row.kind != OptionKind::kSwitch && !row.repeatable && row.group != "Output";
}

// "--against --tp 4 --pp 2" as "--against tp=4 --against pp=2": behind an --against without a word
// of its own, options of the job and the plan are the other side's.
Arguments with_pairs(const Arguments& arguments) {
  const std::vector<const OptionRow*> rows = options_of("compare");
  Arguments words;
  bool is_other_side = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool has_next = i + 1 < arguments.size();
    if (word == "--against" && has_next && arguments[i + 1].starts_with("--")) {
      is_other_side = true;
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.starts_with("--") ? word.substr(2, equals - 2) : "";
    const auto row = std::ranges::find(rows, name, &OptionRow::name);
    const bool takes_next = equals == std::string::npos && has_next;
    if (!is_other_side || row == rows.end() || !is_of_question(**row) ||
        (equals == std::string::npos && !takes_next)) {
      words.push_back(word);
      continue;
    }
    words.emplace_back("--against");
    words.push_back(takes_next ? name + "=" + arguments[++i] : word.substr(2));
  }
  return words;
}

// The words of --against by the names of their keys.
std::map<std::string, std::string> changes(const Options& options) {
  std::map<std::string, std::string> words;
  for (const std::string& word : all_of(options, "against")) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError("--against: found '" + word + "', expected KEY=VALUE");
    }
    const std::string name = option_name(word.substr(0, equals));
    if (!words.try_emplace(name, word).second) {
      throw second_word("--against " + word, name, "one");
    }
  }
  return words;
}

// The options of the other side: each --against in place of what was given.
Options other_side(const Options& options) {
  Options other = options;
  other.values.erase("against");
  const std::map<std::string, std::string> words = changes(options);
  for (const auto& [name, word] : words) {
    drop_key(other, name);
    drop_key(other, counterpart(name));
  }
  const std::vector<const OptionRow*> rows = options_of("compare");
  for (const auto& [name, word] : words) {
    const auto row = std::ranges::find(rows, name, &OptionRow::name);
    if (row == rows.end()) {
      add_option(other, "set", word);
    } else if (is_of_question(**row)) {
      add_option(other, name, word.substr(word.find('=') + 1));
    } else {
      throw InputError(
          "--against: found '" + word +
          "', expected an option of the job or the plan, or a switch of the framework");
    }
  }
  return other;
}

Side side_of(const Options& options, const Library& library) {
  Side side{.question = question_of(options, library), .prediction = {}};
  side.prediction = predict_question(side.question, {});
  return side;
}

std::string verdict(const std::string& title, const Side& side) {
  std::string text = title;
  text += ": ";
  text += verdict_words(side.prediction);
  if (!side.prediction.reason.empty()) {
    text += ", ";
    text += side.prediction.reason;
  }
  text += "\n";
  return text;
}

// Seconds and rates as people read them.
Table rounded(Table table) {
  constexpr int kDecimals = 4;
  for (std::vector<Cell>& row : table.rows) {
    for (Cell& cell : row) {
      if (const double* value = std::get_if<double>(&cell)) {
        cell = fixed(*value, kDecimals);
      }
    }
  }
  return table;
}

std::string comparison_text(const Side& left, const Side& right, const Table& table) {
  std::string text = verdict("left", left);
  text += verdict("right", right);
  if (table.rows.empty()) {
    text += "nothing differs\n";
    return text;
  }
  text += "\n";
  text += table_text(rounded(table));
  return text;
}

std::string render(const Side& left, const Side& right, const Options& options,
                   const Screen& screen) {
  const Table table = comparison(left, right);
  switch (format_of(options)) {
    case Format::kTable:
      return asks_details(options) ? comparison_text(left, right, table)
                                   : compare_screen(screen, left, right, table);
    case Format::kCsv: return csv_text(table);
    case Format::kJson: return comparison_json(left, right, table);
  }
  return "";
}

}  // namespace

Table comparison(const Side& left, const Side& right) {
  Table table{.columns = {"kind", "name", "left", "right", "delta"}};
  add_job(table, left.question.job, right.question.job);
  add_profile(table, left.question.job.profile, right.question.job.profile);
  add_plan(table, left.question.plan, right.question.plan);
  if (left.prediction.has_numbers() && right.prediction.has_numbers()) {
    const StageMemory& before = worst_stage(left.prediction);
    const StageMemory& after = worst_stage(right.prediction);
    add_totals(table, before, after);
    add_rows(table, before, after);
    add_time(table, left.prediction.time, right.prediction.time);
  }
  return table;
}

ExitCode run_compare(const Arguments& arguments) {
  const Options options = parse_options("compare", with_pairs(arguments));
  if (given(options, "help")) {
    return run_help({"compare"});
  }
  refuse_positional(options);
  required_text(options, "against");
  const Library library = library_of(options);
  Options here = options;
  here.values.erase("against");
  const Side left = side_of(here, library);
  const Side right = side_of(other_side(options), library);
  Output output(text_or(options, "out", ""));
  for (const Side* side : {&left, &right}) {
    for (const std::string& warning : side->question.warnings) {
      print_message("warning: " + warning);
    }
  }
  output.write(render(left, right, options, screen_for(options, output)));
  output.commit();
  // The worse of the two.
  return std::max(exit_code_of(left.prediction, fails_on(options)),
                  exit_code_of(right.prediction, fails_on(options)));
}

}  // namespace shardplan
