#include "tools/options/options.h"

#include <algorithm>
#include <boost/program_options.hpp>

#include "tools/options/foreign_options.h"
#include "tools/options/missing_options.h"
#include "tools/options/option_table.h"
#include "tools/options/option_values.h"
#include "tools/options/spoken_words.h"
#include "tools/report/output.h"

namespace shardplan {
namespace {

namespace po = boost::program_options;

// Only `--name value` and `--name=value`. The library's default style would complete names from
// their beginning (--se for --sequence-length): adding an option would break scripts.
constexpr int kStyle = po::command_line_style::allow_long |
                       po::command_line_style::long_allow_adjacent |
                       po::command_line_style::long_allow_next;

const OptionRow* find_row(std::string_view command, std::string_view name) {
  for (const OptionRow* row : options_of(command)) {
    if (row->name == name) {
      return row;
    }
  }
  return nullptr;
}

std::string without_dashes(const std::string& flag) {
  const std::size_t start = flag.find_first_not_of('-');
  return start == std::string::npos ? "" : flag.substr(start, flag.find('=') - start);
}

void check_value(const OptionRow& row, std::string& value) {
  const std::string place = "--" + row.name;
  switch (row.kind) {
    case OptionKind::kSwitch: return;
    case OptionKind::kCount: parse_count(value, row.low, row.high, place); return;
    case OptionKind::kBytes: parse_bytes(value, row.low, row.high, place); return;
    case OptionKind::kNumber:
      if (std::ranges::find(row.words, value) != row.words.end()) {
        return;
      }
      parse_number(value, static_cast<double>(row.low), static_cast<double>(row.high), place);
      return;
    case OptionKind::kChoice: value = parse_choice(value, row.choices, place); return;
    case OptionKind::kText:
      if (value.empty()) {
        throw InputError(place + ": found '', expected " + row.argument);
      }
      return;
  }
}

// The one place that sees the library's exceptions: its words become ours.
po::parsed_options split_tokens(std::string_view command, const std::vector<std::string>& tokens) {
  po::options_description description;
  for (const OptionRow* row : options_of(command)) {
    if (row->kind == OptionKind::kSwitch) {
      description.add_options()(row->name.c_str(), "");
    } else {
      description.add_options()(row->name.c_str(), po::value<std::string>(), "");
    }
  }
  try {
    return po::command_line_parser(tokens)
        .options(description)
        .style(kStyle)
        .allow_unregistered()
        .run();
  } catch (const po::invalid_command_line_syntax& problem) {
    const std::string flag = "--" + without_dashes(problem.get_option_name());
    if (problem.kind() == po::invalid_syntax::extra_parameter) {
      throw InputError(flag + ": takes no value");
    }
    throw InputError(flag + ": needs a value");
  }
}

// Each is written as if alone: of two in one place the first would be lost.
void refuse_shared_outputs(const Options& options) {
  std::vector<std::string> names;
  for (const OptionRow* row : options_of(options.command)) {
    const bool is_written = row->name == "out" || (row->is_output && given(options, row->name));
    if (!is_written) {
      continue;
    }
    const std::string path = text_or(options, row->name, "-");
    for (const std::string& name : names) {
      if (is_same_output(text_or(options, name, "-"), path)) {
        throw InputError("--" + name + " and --" + row->name + ": found one place for both, " +
                         (path == "-" ? "standard output" : "'" + path + "'") +
                         ", expected two files");
      }
    }
    names.push_back(row->name);
  }
}

// "pretrain.sh:57" is a line of the file.
std::string without_line(const std::string& word) {
  const std::size_t colon = word.rfind(':');
  const bool is_line = colon != std::string::npos && colon + 1 < word.size() &&
                       word.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return is_line ? word.substr(0, colon) : word;
}

// What is asked would be lost in the answer.
void refuse_outputs_over_inputs(const Options& options) {
  std::vector<std::string> inputs = options.positional;
  std::vector<std::string> outputs;
  for (const OptionRow* row : options_of(options.command)) {
    if (!given(options, row->name)) {
      continue;
    }
    if (row->is_input) {
      const std::string word = text_or(options, row->name, "");
      inputs.insert(inputs.end(), {word, without_line(word)});
    } else if (row->is_output) {
      outputs.push_back(row->name);
    }
  }
  for (const std::string& name : outputs) {
    const std::string path = text_or(options, name, "");
    for (const std::string& input : inputs) {
      if (is_same_file(input, path)) {
        throw InputError("--" + name + ": found '" + path + "', the file '" + input +
                         "' that is read, expected another");
      }
    }
  }
}

}  // namespace

Options parse_options(std::string_view command, const std::vector<std::string>& typed) {
  const std::vector<std::string> arguments = with_spoken_words(command, typed);
  Options options;
  options.command = command;
  for (const po::option& token : split_tokens(command, arguments).options) {
    const bool is_positional = token.string_key.empty();
    const std::string& first = token.original_tokens.front();
    if (token.unregistered || (is_positional && first.size() > 1 && first.front() == '-')) {
      throw unknown_options(command, arguments);
    }
    if (is_positional) {
      options.positional.push_back(first);
      continue;
    }
    const OptionRow* row = find_row(command, token.string_key);
    std::vector<std::string>& values = options.values[row->name];
    if (!row->repeatable && !values.empty()) {
      throw InputError("--" + row->name + ": given more than once");
    }
    values.push_back(token.value.empty() ? "" : token.value.front());
    // The library takes the next word as the value even if it is the next option.
    const bool is_next_option = token.original_tokens.size() > 1 && values.back().starts_with("--");
    if (is_next_option) {
      throw InputError("--" + row->name + ": needs a value");
    }
    check_value(*row, values.back());
    split_pairs(*row, values);
  }
  take_positional_job(options);
  refuse_shared_outputs(options);
  refuse_other_formats(options);
  refuse_outputs_over_inputs(options);
  return options;
}

InputError second_word(std::string place, const std::string& key, const std::string& expected) {
  place.append(": found a second word for ").append(key);
  place.append(", expected ").append(expected);
  return InputError(place);
}

void add_option(Options& options, const std::string& name, std::string value) {
  const OptionRow* row = find_row(options.command, name);
  if (row == nullptr) {
    throw unknown_options(options.command, {"--" + name});
  }
  std::vector<std::string>& values = options.values[name];
  if (!row->repeatable && !values.empty()) {
    throw InputError("--" + name + ": given more than once");
  }
  check_value(*row, value);
  values.push_back(std::move(value));
}

std::vector<const OptionRow*> options_of(std::string_view command) {
  std::vector<const OptionRow*> rows;
  for (const OptionRow& row : option_table()) {
    if (std::find(row.commands.begin(), row.commands.end(), command) != row.commands.end()) {
      rows.push_back(&row);
    }
  }
  return rows;
}

bool given(const Options& options, std::string_view name) {
  return options.values.find(std::string(name)) != options.values.end();
}

std::string text_or(const Options& options, std::string_view name, const std::string& fallback) {
  return given(options, name) ? options.values.at(std::string(name)).front() : fallback;
}

std::vector<std::string> all_of(const Options& options, std::string_view name) {
  return given(options, name) ? options.values.at(std::string(name)) : std::vector<std::string>{};
}

std::string required_text(const Options& options, std::string_view name) {
  if (!given(options, name)) {
    throw missing_options(options, name);
  }
  return text_or(options, name, "");
}

void refuse_positional(const Options& options) {
  if (!options.positional.empty()) {
    const bool has_model = given(options, "model");
    throw InputError(options.command + ": found '" + options.positional.front() +
                     (has_model ? "' beside --model " + text_or(options, "model", "") : "'") +
                     ", expected options only");
  }
}

std::int64_t count_or(const Options& options, std::string_view name, std::int64_t fallback) {
  if (!given(options, name)) {
    return fallback;
  }
  const OptionRow* row = find_row(options.command, name);
  const std::string place = "--" + row->name;
  const std::string word = text_or(options, name, "");
  return row->kind == OptionKind::kBytes ? parse_bytes(word, row->low, row->high, place)
                                         : parse_count(word, row->low, row->high, place);
}

double number_or(const Options& options, std::string_view name, double fallback) {
  if (!given(options, name)) {
    return fallback;
  }
  const OptionRow* row = find_row(options.command, name);
  return parse_number(text_or(options, name, ""), static_cast<double>(row->low),
                      static_cast<double>(row->high), "--" + row->name);
}

}  // namespace shardplan
