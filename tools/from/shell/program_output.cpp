// What programs of a script write, where it is known: echo, printf, cut, scontrol; and $(...).
#include "tools/from/shell/program_output.h"

#include <algorithm>

#include "tools/from/shell/arithmetic.h"
#include "tools/from/shell/inner.h"
#include "tools/from/shell/interpreter.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

bool is_integer(const std::string& word) {
  const std::size_t first = word.starts_with('-') ? 1 : 0;
  return word.size() > first &&
         std::all_of(word.begin() + static_cast<std::ptrdiff_t>(first), word.end(),
                     [](char d) { return d >= '0' && d <= '9'; });
}

}  // namespace

std::string joined_words(const Words& words, std::size_t first) {
  std::string text;
  for (std::size_t i = first; i < words.size(); ++i) { text += (i > first ? " " : "") + words[i]; }
  return text;
}

std::optional<std::string> formatted(const Words& words) {
  std::string text;
  std::size_t next = 2;
  for (bool again = words.size() > 1; again; again = again && next < words.size()) {
    const std::string& format = words[1];
    again = false;
    for (std::size_t i = 0; i < format.size(); ++i) {
      const char escaped = i + 1 < format.size() ? format[i + 1] : '\0';
      if (format[i] != '%' && format[i] != '\\') {
        text += format[i];
      } else if (format[i] == '\\' && (escaped == 'n' || escaped == 't' || escaped == '\\')) {
        text += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : '\\';
        ++i;
      } else if (format[i] == '%' && escaped == '%') {
        text += '%';
        ++i;
      } else {
        const std::size_t type =
            std::min(format.find_first_not_of("0123456789", i + 1), format.size());
        const std::string width = format.substr(i + 1, type - i - 1);
        const std::string argument = next < words.size() ? words[next++] : "";
        const bool is_number = type < format.size() && format[type] == 'd';
        if (format[i] == '\\' ||
            (is_number ? !is_integer(argument) : format.compare(type, 1, "s") != 0) ||
            width.size() > 2 || (!width.empty() && plain(argument) != argument)) {
          return std::nullopt;
        }
        const bool zeros = width.starts_with('0') && is_number && !argument.starts_with('-');
        const std::size_t letters = width.empty() ? 0 : std::stoul(width);
        text.append(letters - std::min(letters, argument.size()), zeros ? '0' : ' ');
        text += argument;
        i = type;
        again = true;
      }
    }
  }
  return words.size() > 1 ? std::optional(text) : std::nullopt;
}

// The text of a command that writes what is known: into $(...), or a file of the script.
void ShellInterpreter::print(const Simple& simple) {
  std::string text;
  bool known = true;
  if (simple.here) {
    text = *simple.here;
  } else {
    text = program_output(simple.words, known);
  }
  if (!simple.target.empty()) {
    state_.written[simple.target] = text;
  } else if (state_.output != nullptr) {
    *state_.output += text;
    state_.output_known = state_.output_known && known;
  }
}

// `scontrol show hostnames` of the job's nodes: names of our own, as many as the job has.
std::string ShellInterpreter::host_names(const Words& words, bool& known) const {
  constexpr std::int64_t kMostNodes = 1024;
  const bool shows = words.size() >= 3 && words[1] == "show" && words[2].starts_with("hostname");
  const bool of_job =
      words.size() == 3 || (words.size() == 4 && words[3].find("NODELIST") != std::string::npos);
  const auto nodes = shell_arithmetic("SLURM_NNODES", state_.context.values);
  known = known && shows && of_job && nodes && *nodes <= kMostNodes;
  std::string text;
  for (std::int64_t i = 0; known && i < *nodes; ++i) { text += "node" + std::to_string(i) + "\n"; }
  return text;
}

std::string ShellInterpreter::program_output(const Words& words, bool& known) {
  const std::string name = shell_program(words.front());
  const std::string& last = words.back();
  if (name == "echo") {
    const std::size_t first = words.size() > 1 && (words[1] == "-e" || words[1] == "-n") ? 2 : 1;
    return joined_words(words, first) + "\n";
  }
  if (name == "printf") {
    const std::optional<std::string> text = formatted(words);
    known = known && text;
    return text.value_or("");
  }
  if (name == "basename" && words.size() == 2) {
    return shell_program(last) + "\n";
  }
  if (name == "dirname" && words.size() == 2) {
    const std::size_t slash = last.rfind('/');
    return (slash == std::string::npos ? "." : last.substr(0, slash)) + "\n";
  }
  if (name == "scontrol") {
    return host_names(words, known);
  }
  if (name == "expr" || name == "seq") {
    const auto value = shell_arithmetic(name == "expr" ? joined_words(words, 1) : words.back(),
                                        state_.context.values);
    if (value && name == "expr") {
      return std::to_string(*value) + "\n";
    }
    const auto first = words.size() == 3 ? shell_arithmetic(words[1], state_.context.values)
                                         : std::optional<std::int64_t>(1);
    const bool is_known = value && first && words.size() <= 3;
    if (is_known && (*value < *first || is_short_range(*first, *value))) {
      std::string text;
      for (std::int64_t i = 0; *value >= *first && i <= *value - *first; ++i) {
        text += std::to_string(*first + i) + "\n";
      }
      return text;
    }
  }
  const std::optional<std::string> fields = name == "cut" ? cut(words) : std::nullopt;
  known = fields.has_value();
  return fields.value_or("");
}

// cut -d '(' -f 1 of what is piped into it.
std::optional<std::string> ShellInterpreter::cut(const Words& words) const {
  std::string delimiter = "\t";
  std::int64_t field = 0;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string option = words[i].substr(0, 2);
    const bool is_apart = words[i].size() == 2 && i + 1 < words.size();
    const std::string value = is_apart ? words[++i] : words[i].substr(option.size());
    if (option == "-d" && value.size() == 1) {
      delimiter = value;
    } else if (option == "-f" && value.find_first_not_of("0123456789") == value.npos) {
      field = shell_arithmetic(value, {}).value_or(0);
    } else {
      return std::nullopt;
    }
  }
  const std::string line = state_.input.value_or("");
  if (field == 0 || !state_.input || line.find('\n') + 1 != line.size() ||
      plain(line) != line) {  // one known line
    return std::nullopt;
  }
  std::size_t begin = 0;
  for (; field > 1 && line.find(delimiter, begin) != line.npos; --field) {
    begin = line.find(delimiter, begin) + 1;
  }
  if (field > 1) {  // a line without the delimiter is whole
    return begin == 0 ? line : "\n";
  }
  return line.substr(begin, std::min(line.find(delimiter, begin), line.size() - 1) - begin) + "\n";
}

// The output of $(text), if every command in it is one whose output is known.
std::optional<std::string> ShellInterpreter::substitute(const std::string& text) {
  if (!live()) {
    return std::nullopt;
  }
  std::string output;
  std::string* const outer = std::exchange(state_.output, &output);
  const bool outer_known = std::exchange(state_.output_known, true);
  const std::size_t num_choices = state_.script.choices.size();
  {
    const Apart apart(*this);
    state_.last = {};
    nested(text, in_.file, in_.line, {});
    state_.substituted = state_.last;
  }
  const bool known = state_.output_known && state_.script.choices.size() == num_choices;
  state_.script.choices.resize(std::min(num_choices, state_.script.choices.size()));
  state_.output = outer;
  state_.output_known = outer_known;
  while (output.ends_with('\n')) { output.pop_back(); }
  return known ? std::optional(output) : std::nullopt;
}

}  // namespace shardplan
