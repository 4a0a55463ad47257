#include "tools/from/shell/interpreter.h"

#include <algorithm>
#include <utility>

#include "data/read/input_error.h"
#include "tools/from/shell/expansion.h"

namespace shardplan {
namespace {

constexpr int kDeepest = 48;                 // scripts within each other
constexpr int kDeepestCommands = 256;        // each takes some KB of the stack
constexpr std::size_t kMostTurns = 1 << 16;  // commands and turns of loops

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  while (text.ends_with(' ') || text.ends_with(';')) { text.pop_back(); }
  constexpr std::size_t kLongest = 60;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

}  // namespace

bool is_shell_name(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, is_name_letter) &&
         std::isdigit(static_cast<unsigned char>(word.front())) == 0;
}

ShellInterpreter::ShellInterpreter(ShellState& state, std::string text, std::string file,
                                   std::int64_t first_line, std::vector<std::string> launcher)
    : state_(state),
      in_(std::move(text), std::move(file), state.context, first_line),
      launcher_(std::move(launcher)) {
  if (++state_.depth > kDeepest) {
    --state_.depth;
    throw InputError(place(first_line) + ": found more than " + std::to_string(kDeepest) +
                     " scripts or functions within each other, expected fewer");
  }
}

ShellInterpreter::Apart::Apart(ShellInterpreter& of)
    : state(of.state_),
      values(of.copied_values()),
      arrays(state.arrays),
      integers(state.integers),
      assigned(state.assigned),
      exported(state.exported),
      exits_at(state.script.exits_at) {
  if (++state.depth > kDeepest) {
    --state.depth;
    throw InputError(of.place(of.in_.line) + ": found more than " + std::to_string(kDeepest) +
                     " subshells within each other, expected fewer");
  }
}

ShellInterpreter::Apart::~Apart() {
  --state.depth;
  state.context.values = std::move(values);
  state.arrays = std::move(arrays);
  state.integers = std::move(integers);
  state.assigned = std::move(assigned);
  state.exported = std::move(exported);
  state.script.exits_at = std::move(exits_at);
  state.flow = Flow::kOn;
}

void ShellInterpreter::install() {
  state_.context.substitute = [this](const std::string& text) { return substitute(text); };
  state_.context.assign = [this](const std::string& name, std::optional<std::int64_t> value) {
    value ? store(name, {std::to_string(*value)}, false, false) : set_unknown(name);
  };
}

void ShellInterpreter::whole() {
  while (in_.at < in_.text.size() && state_.flow == Flow::kOn) {
    list({});
    if (in_.at < in_.text.size()) {
      in_.next();  // a ')' or ";;" of nothing
    }
  }
}

std::string ShellInterpreter::peek() const {
  std::size_t end = in_.at;
  while (end < in_.text.size() &&
         std::string_view(" \t\r\n;&|()<>").find(in_.text[end]) == std::string_view::npos) {
    ++end;
  }
  return in_.text.substr(in_.at, end - in_.at);
}

bool ShellInterpreter::take(const std::string& keyword) {
  skip_separators();
  if (peek() != keyword) {
    return false;
  }
  in_.at += keyword.size();
  return true;
}

void ShellInterpreter::expect(const std::string& keyword, const std::string& opening,
                              std::int64_t first_line) {
  if (!take(keyword)) {
    throw InputError(place(first_line) + ": found '" + opening + "' without its '" + keyword +
                     "', expected a shell script");
  }
}

// Blanks and continued lines; a comment up to its line's end.
void ShellInterpreter::skip_blanks() {
  while (in_.at < in_.text.size()) {
    if (in_.now() == ' ' || in_.now() == '\t' || in_.now() == '\r') {
      in_.next();
    } else if (in_.now() == '\\' && (in_.ahead() == '\n' || in_.ahead() == '\r')) {
      while (in_.now() != '\n') { in_.next(); }
      in_.next();
    } else if (in_.now() == '#') {
      const std::size_t end = std::min(in_.text.find('\n', in_.at), in_.text.size());
      const std::string comment = in_.text.substr(in_.at, end - in_.at);
      if (comment.starts_with("#SBATCH")) {
        state_.script.comments.push_back(comment);
      }
      in_.at = end;
    } else {
      return;
    }
  }
}

void ShellInterpreter::skip_separators() {
  while (true) {
    skip_blanks();
    const bool ends_branch = in_.now() == ';' && (in_.ahead() == ';' || in_.ahead() == '&');
    if (in_.at >= in_.text.size() || ends_branch ||
        (in_.now() != '\n' && in_.now() != ';' && in_.now() != '&')) {
      return;
    }
    in_.next();
  }
}

std::string ShellInterpreter::source(std::size_t begin) const {
  return one_line(in_.text.substr(begin, in_.at - begin));
}

// Up to one of the words at a command's beginning, a ')' or a ";;".
ShellInterpreter::Status ShellInterpreter::list(const std::vector<std::string>& stops) {
  Status last;
  while (true) {
    skip_separators();
    const bool ends_branch = in_.now() == ';' || in_.now() == ')';
    if (in_.at >= in_.text.size() || ends_branch ||
        std::ranges::find(stops, peek()) != stops.end()) {
      return last;
    }
    if (stops.empty() && state_.flow != Flow::kOn) {
      return last;
    }
    const std::size_t begin = in_.at;
    {
      std::optional<Apart> apart;
      if (is_followed('&', [this] { and_or(); })) {
        apart.emplace(*this);
      }
      const Status status = and_or();
      last = live() ? status : last;
    }
    if (in_.at == begin) {
      in_.next();
    }
  }
}

// A program is taken to succeed, which is a choice.
ShellInterpreter::Status ShellInterpreter::and_or() {
  std::size_t begin = in_.at;
  std::int64_t line = in_.line;
  Status status = pipeline();
  finished(status);
  while (true) {
    skip_blanks();
    const bool both = in_.begins("&&");
    if (!both && !in_.begins("||")) {
      return status;
    }
    status.expected = status.is_program ? Truth::kTrue : status.expected;
    const bool succeeds = !live() || decide(status, line, source(begin));
    in_.at += 2;
    skip_separators();
    begin = in_.at;
    line = in_.line;
    const Dead skipped(*this, succeeds != both);
    const Status next = pipeline();
    finished(next);
    status = succeeds == both ? next : Status{.truth = succeeds ? Truth::kTrue : Truth::kFalse};
  }
}

// What `$?` says from now on.
void ShellInterpreter::finished(const Status& status) {
  if (!live()) {
    return;
  }
  const bool known = status.truth != Truth::kUnknown && status.missing.empty();
  state_.last = status;
  state_.context.exit_status = !known                         ? marked(kUnknownMark, "$", "?")
                               : !status.number.empty()       ? status.number
                               : status.truth == Truth::kTrue ? "0"
                                                              : "1";
}

// Whether what `read` reads from here on, and does not run, is followed by this operator.
template <class Read>
bool ShellInterpreter::is_followed(char letter, Read read) {
  if (!live()) {
    return false;
  }
  const std::size_t begin = in_.at;
  const std::int64_t line = in_.line;
  {
    const Dead ahead(*this, true);
    read();
    skip_blanks();
  }
  const bool found = in_.at < in_.text.size() && in_.now() == letter && in_.ahead() != letter;
  in_.at = begin;
  in_.line = line;
  return found;
}

// In $(...) what a part but the last prints is what the next one reads; elsewhere that is not
// known.
ShellInterpreter::Status ShellInterpreter::part_of_pipeline(bool is_last) {
  if (!live()) {
    return command();
  }
  const Apart apart(*this);
  if (is_last || state_.output == nullptr) {
    Status status = command();
    state_.input.reset();
    return status;
  }
  std::string printed;
  std::string* const outer = std::exchange(state_.output, &printed);
  const bool outer_known = std::exchange(state_.output_known, true);
  Status status = command();
  state_.input = state_.output_known ? std::optional(printed) : std::nullopt;
  state_.output = outer;
  state_.output_known = outer_known;
  return status;
}

ShellInterpreter::Status ShellInterpreter::pipeline() {
  const bool opposite = take("!");
  if (take("time")) {
    take("-p");
  }
  const bool was_piped = is_followed('|', [this] { command(); });
  const auto outer_input = state_.input;
  Status status = was_piped ? part_of_pipeline(false) : command();
  skip_blanks();
  while (in_.now() == '|' && in_.ahead() != '|' && in_.at < in_.text.size()) {
    in_.next();
    if (in_.now() == '&') {
      in_.next();
    }
    skip_separators();
    part_of_pipeline(!is_followed('|', [this] { command(); }));
    status = {.truth = Truth::kUnknown, .is_program = true};
    skip_blanks();
  }
  if (was_piped) {
    state_.input = outer_input;
  }
  if (opposite) {
    status.truth = negated(status.truth);
    status.is_program = false;
    status.expected = Truth::kFalse;
    status.number.clear();
  }
  return status;
}

ShellInterpreter::Status ShellInterpreter::command() {
  skip_blanks();
  if (live() && ++state_.turns > kMostTurns) {
    throw InputError(place(in_.line) + ": found more than " + std::to_string(kMostTurns) +
                     " commands to follow, expected a launch script");
  }
  if (state_.commands_deep == kDeepestCommands) {
    throw InputError(place(in_.line) + ": found more than " + std::to_string(kDeepestCommands) +
                     " commands within each other, expected fewer");
  }
  ++state_.commands_deep;
  Status status = compound(peek());
  --state_.commands_deep;
  return status;
}

// Or a simple one, where `word` opens nothing.
ShellInterpreter::Status ShellInterpreter::compound(const std::string& word) {
  Status status;
  if (word == "if") {
    status = if_command();
  } else if (word == "while" || word == "until") {
    status = while_command();
  } else if (word == "for" || word == "select") {
    status = for_command();
  } else if (word == "case") {
    status = case_command();
  } else if (word == "[[") {
    status = condition();
  } else if (word == "{") {
    const std::int64_t line = in_.line;
    in_.next();
    status = list({"}"});
    expect("}", "{", line);
  } else if (in_.begins("((")) {
    status = arithmetic();
  } else if (in_.now() == '(') {
    status = subshell();
  } else if (!function()) {
    return simple();
  }
  redirections();
  return status;
}

// Behind a compound command.
ShellInterpreter::Simple ShellInterpreter::redirections() {
  Simple behind;
  std::size_t here_end = 0;
  skip_blanks();
  while (in_.now() == '<' || in_.now() == '>' ||
         (std::isdigit(static_cast<unsigned char>(in_.now())) != 0 && in_.ahead() == '>')) {
    if (in_.now() != '<' && in_.now() != '>') {
      in_.next();
    }
    redirection(behind, here_end);
    skip_blanks();
  }
  return behind;
}

// NAME() body, function NAME body.
bool ShellInterpreter::function() {
  const std::size_t begin = in_.at;
  const std::int64_t line = in_.line;
  const bool announced = peek() == "function";
  if (announced) {
    in_.at += std::string_view("function").size();
    skip_blanks();
  }
  const std::string name = peek();
  in_.at += name.size();
  skip_blanks();
  const bool parentheses = in_.now() == '(';
  if (parentheses) {
    in_.next();
    skip_blanks();
  }
  const bool is_name = !name.empty() && name.find_first_of("=$\"'") == std::string::npos;
  const bool is_function = is_name && (parentheses ? in_.now() == ')' : announced);
  if (!is_function) {
    in_.at = begin;
    in_.line = line;
    return false;
  }
  if (parentheses) {
    in_.next();
  }
  skip_separators();
  const std::size_t body = in_.at;
  const std::int64_t body_line = in_.line;
  {
    const Dead defined(*this, true);
    command();
  }
  if (live()) {
    state_.functions[name] = {
        .text = in_.text.substr(body, in_.at - body), .file = in_.file, .line = body_line};
  }
  return true;
}

}  // namespace shardplan
