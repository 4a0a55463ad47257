// One command of a script: what the shell itself does, scripts within it, and programs.
#include <algorithm>
#include <array>

#include "data/read/input_error.h"
#include "tools/from/shell/interpreter.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

// What a command may stand behind.
const Words kPrefixes = {"exec", "command", "builtin", "nohup"};

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

bool is_integer(const std::string& word) {
  const std::size_t first = word.starts_with('-') ? 1 : 0;
  return word.size() > first &&
         std::all_of(word.begin() + static_cast<std::ptrdiff_t>(first), word.end(),
                     [](char d) { return d >= '0' && d <= '9'; });
}

// What printf writes behind its first word; nothing for formats other than %s, %d, %4d and their
// like.
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

}  // namespace

ShellInterpreter::Status ShellInterpreter::simple() {
  constexpr std::size_t kMostWords = 1 << 14;
  Simple simple;
  std::size_t here_end = 0;
  simple.line = in_.line;
  simple.assigned = state_.assigned;
  in_.sets = live();
  state_.substituted.reset();
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
  const auto first = std::ranges::find_if(simple.words, [](const std::string& word) {
    return std::ranges::find(kPrefixes, word) == kPrefixes.end();
  });
  simple.words.erase(simple.words.begin(), first);
  restore(simple.own);
  if (simple.words.empty()) {
    return state_.substituted.value_or(Status{});
  }
  const std::optional<Status> done = built_in(simple);
  Status status = done ? *done : program(simple);
  restore(simple.before);
  return status;
}

ShellInterpreter::Status ShellInterpreter::program(const Simple& simple) {
  const auto function = state_.functions.find(plain(simple.words.front()));
  if (function != state_.functions.end()) {
    state_.last = {};
    call(ShellState::Function(function->second), simple.words);
    return state_.last;
  }
  if (!inner_script(simple)) {
    record(simple);
  }
  return {.truth = Truth::kUnknown, .is_program = true};
}

// What ends or skips something.
std::optional<ShellInterpreter::Status> ShellInterpreter::control(const Words& words) {
  const std::string& name = words.front();
  if (name == "exit" || name == "return") {
    const std::string number = words.size() > 1 ? words[1] : state_.context.exit_status;
    state_.last = {.truth = number == "0"             ? Truth::kTrue
                            : plain(number) == number ? Truth::kFalse
                                                      : Truth::kUnknown,
                   .is_program = plain(number) != number,
                   .number = number};
    state_.flow = name == "exit" ? Flow::kExit : Flow::kReturn;
    state_.script.exits_at = name == "exit" ? place(in_.line) : state_.script.exits_at;
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
  if (is_declaration(name)) {
    declare(words);
  } else if (name == "[" || name == "test") {
    const bool bracket = name == "[" && words.back() == "]" && words.size() > 1;
    Words condition(words.begin() + 1, words.end() - (bracket ? 1 : 0));
    for (std::size_t i = 1; i < condition.size(); ++i) {  // it knows no patterns
      const std::string& before = condition[i - 1];
      const bool is_compared = before == "=" || before == "==" || before == "!=";
      condition[i] = is_compared ? literal_pattern(condition[i]) : condition[i];
    }
    return tested(std::move(condition));
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
  } else if (name == "eval") {
    nested(joined_words(words, 1), in_.file, simple.line, launcher_);
    return state_.last;
  } else if (name == "let") {
    Status last;
    for (std::size_t i = 1; i < words.size(); ++i) { last = calculated(words[i], simple.line); }
    return last;
  } else if (name == "." || name == "source") {
    if (words.size() < 2 || !script_file(simple, 1)) {
      state_.script.unread.push_back(place(simple.line) + ": " + plain(joined_words(words, 0)));
    }
  } else if (name == "printf" && words.size() > 2 && words[1] == "-v") {
    const auto text = formatted({words.begin() + 2, words.end()});
    text ? store(words[2], {*text}, false, false) : set_unknown(words[2]);
  } else if (name == "echo" || name == "printf" || (name == "cat" && simple.here)) {
    print(simple);
  } else if (name != ":" && name != "true") {
    const std::optional<Status> status = reading(simple);
    return status ? status : control(words);
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
      in_.spend(kStepsOfEntry + found->second.front().size() * kStepsOfLetter);
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
  std::erase_if(clean, is_mark);
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
  state.context.values["IFS"] = {" \t\n"};
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
  script.steps = state.context.steps;
  script.variables = std::move(state.context.values);
  script.mentioned = std::move(state.context.mentioned);
  for (std::size_t i = 0; script.mentioned.contains("@") && i < arguments.size(); ++i) {
    script.mentioned.insert(std::to_string(i + 1));
  }
  return script;
}

}  // namespace shardplan
