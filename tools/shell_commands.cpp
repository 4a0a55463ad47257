// One command of a script: what the shell itself does, scripts within it, and programs.
#include <algorithm>
#include <array>

#include "data/input_error.h"
#include "tools/shell_interpreter.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

// What a command may stand behind.
const Words kPrefixes = {"exec", "command", "builtin", "nohup"};
const Words kDeclarations = {"export", "local", "readonly", "declare", "typeset"};

std::string joined_words(const Words& words, std::size_t first) {
  std::string text;
  for (std::size_t i = first; i < words.size(); ++i) { text += (i > first ? " " : "") + words[i]; }
  return text;
}

// "3" of $3; 0 for another name, and for more than a script has.
std::size_t argument_number(const std::string& name) {
  constexpr std::size_t kMostDigits = 3;
  const bool is_digits = name.find_first_not_of("0123456789") == std::string::npos;
  return is_digits && name.size() <= kMostDigits ? std::stoul("0" + name) : 0;
}

}  // namespace

ShellInterpreter::Status ShellInterpreter::simple() {
  constexpr std::size_t kMostWords = 1 << 14;
  Simple simple;
  std::size_t here_end = 0;
  simple.line = in_.line;
  in_.sets = live();
  while (in_.at < in_.text.size()) {
    skip_blanks();
    const bool both = in_.now() == '&' && in_.ahead() == '>';
    if (in_.at >= in_.text.size() || in_.now() == ')' ||
        (ShellWordReader::ends_command(in_.now()) && !both)) {
      break;
    }
    if (both || in_.now() == '<' || in_.now() == '>') {
      in_.at += both ? 1 : 0;
      redirection(simple, here_end);
    } else if (in_.now() == '(') {
      in_.next();
    } else if (!assignment(simple)) {
      if (simple.words.empty()) {
        set_aside(simple);
      }
      in_.word(simple.words);
    }
    if (simple.words.size() > kMostWords) {
      throw InputError(place(in_.line) +
                       ": found more words than a command has, expected a launch script");
    }
  }
  return live() ? run(std::move(simple)) : Status{};
}

ShellInterpreter::Status ShellInterpreter::run(Simple simple) {
  while (!simple.words.empty() &&
         std::ranges::find(kPrefixes, simple.words.front()) != kPrefixes.end()) {
    simple.words.erase(simple.words.begin());
  }
  restore(simple.own);
  if (simple.words.empty()) {
    return {};
  }
  const std::optional<Status> done = built_in(simple);
  const Status status = done ? *done : program(simple);
  restore(simple.before);
  return status;
}

ShellInterpreter::Status ShellInterpreter::program(const Simple& simple) {
  const auto function = state_.functions.find(plain(simple.words.front()));
  if (function != state_.functions.end()) {
    call(ShellState::Function(function->second), simple.words);
  } else if (!inner_script(simple)) {
    record(simple);
  }
  return {.truth = Truth::kUnknown, .is_program = true};
}

// What ends or skips something.
std::optional<ShellInterpreter::Status> ShellInterpreter::control(const Words& words) {
  const std::string& name = words.front();
  if (name == "exit") {
    state_.flow = Flow::kExit;
    state_.script.exits_at = place(in_.line);
  } else if (name == "return") {
    state_.flow = Flow::kReturn;
    return Status{.truth = words.size() > 1 && words[1] != "0" ? Truth::kFalse : Truth::kTrue};
  } else if (name == "break") {
    state_.flow = Flow::kBreak;
  } else if (name == "continue") {
    state_.flow = Flow::kContinue;
  } else {
    return std::nullopt;
  }
  return Status{};
}

std::optional<ShellInterpreter::Status> ShellInterpreter::built_in(const Simple& simple) {
  const Words& words = simple.words;
  const std::string& name = words.front();
  if (std::ranges::find(kDeclarations, name) != kDeclarations.end()) {
    declare(words);
  } else if (name == "[" || name == "test") {
    const bool bracket = name == "[" && words.back() == "]" && words.size() > 1;
    Words condition(words.begin() + 1, words.end() - (bracket ? 1 : 0));
    for (std::size_t i = 1; i < condition.size(); ++i) {  // it knows no patterns
      const std::string& before = condition[i - 1];
      const bool is_compared = before == "=" || before == "==" || before == "!=";
      condition[i] = is_compared ? literal_pattern(condition[i]) : condition[i];
    }
    const ShellTruth truth = shell_condition(condition);
    return Status{.truth = truth.truth, .missing = truth.missing};
  } else if (name == "false") {
    return Status{.truth = Truth::kFalse};
  } else if (name == "unset") {
    for (std::size_t i = 1; i < words.size(); ++i) {
      unset(words[i]);
      state_.exported.erase(words[i]);
    }
  } else if (name == "set") {
    set_options(words);
  } else if (name == "shift") {
    return shift(words);
  } else if (name == "getopts") {
    return getopts(words);
  } else if (name == "read") {
    for (const std::string& word : words) { state_.context.values.erase(word); }
    state_.output_known = false;
    return Status{.truth = Truth::kUnknown, .is_program = true};
  } else if (name == "eval") {
    nested(joined_words(words, 1), in_.file, simple.line, launcher_);
  } else if (name == "." || name == "source") {
    if (words.size() < 2 || !script_file(simple, 1)) {
      state_.script.unread.push_back(place(simple.line) + ": " + plain(joined_words(words, 0)));
    }
  } else if (name == "echo" || name == "printf" || (name == "cat" && simple.here)) {
    print(simple);
  } else if (name != ":" && name != "true") {
    return control(words);
  }
  return Status{};
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

std::string ShellInterpreter::program_output(const Words& words, bool& known) {
  const std::string name = shell_program(words.front());
  const std::string& last = words.back();
  if (name == "echo") {
    const std::size_t first = words.size() > 1 && (words[1] == "-e" || words[1] == "-n") ? 2 : 1;
    return joined_words(words, first) + "\n";
  }
  if (name == "printf" && words.size() == 3 && (words[1] == "%s" || words[1] == "%s\\n")) {
    return words[2] + "\n";
  }
  if (name == "basename" && words.size() == 2) {
    return shell_program(last) + "\n";
  }
  if (name == "dirname" && words.size() == 2) {
    const std::size_t slash = last.rfind('/');
    return (slash == std::string::npos ? "." : last.substr(0, slash)) + "\n";
  }
  if (name == "expr" || name == "seq") {
    const auto value = shell_arithmetic(name == "expr" ? joined_words(words, 1) : words.back(),
                                        state_.context.values);
    if (value && name == "expr") {
      return std::to_string(*value) + "\n";
    }
    const auto first = words.size() == 3 ? shell_arithmetic(words[1], state_.context.values)
                                         : std::optional<std::int64_t>(1);
    if (value && first && words.size() <= 3 && *value - *first <= 1024) {
      std::string text;
      for (std::int64_t i = *first; i <= *value; ++i) { text += std::to_string(i) + "\n"; }
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
    nested(text, in_.file, in_.line, {});
  }
  const bool known = state_.output_known && state_.script.choices.size() == num_choices;
  state_.script.choices.resize(std::min(num_choices, state_.script.choices.size()));
  state_.output = outer;
  state_.output_known = outer_known;
  while (output.ends_with('\n')) { output.pop_back(); }
  return known ? std::optional(output) : std::nullopt;
}

void ShellInterpreter::record(const Simple& simple) {
  if (state_.output != nullptr) {  // in $(...): what is printed counts, what is run does not
    bool known = true;
    const std::string text = program_output(simple.words, known);
    *state_.output += text;
    state_.output_known = state_.output_known && known;
    return;
  }
  ShellCommand command;
  command.launcher = launcher_;
  command.words = simple.words;
  command.line = simple.line;
  command.place = place(simple.line);
  for (std::string& word : command.words) { word = plain(word); }
  for (std::string& word : command.launcher) { word = plain(word); }
  if (starts_nothing(command.words.front())) {
    command.words.resize(1);
  }
  const auto put = [&](const std::string& name) {
    const auto found = state_.context.values.find(name);
    if (found != state_.context.values.end() && !found->second.empty()) {
      command.environment[name] = plain(found->second.front());
    }
  };
  for (const std::string& name : state_.exported) { put(name); }
  for (const auto& [name, value] : simple.before) {
    put(name);
    state_.script.export_line[name] = simple.line;
  }
  state_.script.commands.push_back(std::move(command));
}

ShellScript read_shell(const std::string& text, const std::string& file, const ShellGiven& given) {
  ShellState state{.given = given};
  std::string clean = text;
  std::erase_if(clean, [](char letter) {
    return letter == kUnsetMark || letter == kUnknownMark || letter == kEndMark;
  });
  Words arguments;
  for (const auto& [name, value] : given.values) {
    state.context.values[name] = {value};
    arguments.resize(std::max(arguments.size(), argument_number(name)));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = std::to_string(i + 1);
    const auto value = given.values.find(name);
    arguments[i] = value != given.values.end() ? value->second : marked(kUnsetMark, "$", name);
  }
  if (!arguments.empty()) {
    state.context.values["@"] = arguments;
    state.context.values["*"] = arguments;
  }
  state.context.values["0"] = {file};
  state.context.values["BASH_SOURCE"] = {file};
  {
    ShellInterpreter interpreter(state, clean, file, 1, {});
    interpreter.install();
    interpreter.whole();
  }
  ShellScript script = std::move(state.script);
  for (const std::string& name : state.exported) {
    const auto value = state.context.values.find(name);
    if (value != state.context.values.end() && !value->second.empty()) {
      script.exported[name] = plain(value->second.front());
    }
  }
  for (auto& [name, values] : state.context.values) {
    for (std::string& value : values) { value = plain(value); }
  }
  script.variables = std::move(state.context.values);
  script.mentioned = std::move(state.context.mentioned);
  for (std::size_t i = 0; script.mentioned.contains("@") && i < arguments.size(); ++i) {
    script.mentioned.insert(std::to_string(i + 1));
  }
  return script;
}

}  // namespace shardplan
