// One command of a script: what the shell itself does, scripts within it, and programs.
#include "data/read/input_error.h"
#include "tools/from/shell/assignment.h"
#include "tools/from/shell/inner.h"
#include "tools/from/shell/interpreter.h"
#include "tools/from/shell/program_output.h"
#include "tools/from/shell/words.h"

#include <algorithm>

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

// What a command may stand behind.
const Words kPrefixes = {"exec", "command", "builtin", "nohup"};

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

}  // namespace shardplan
