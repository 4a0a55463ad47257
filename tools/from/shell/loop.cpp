// Loops: while, until and for.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tools/from/shell/expansion.h"
#include "tools/from/shell/interpreter.h"

namespace shardplan {
namespace {

constexpr std::size_t kMostOfOneLoop = 1 << 14;  // commands
constexpr std::size_t kMostStarting = 64;        // turns that start programs

// "{1..4}" of a for loop.
std::vector<std::string> with_ranges(const std::vector<std::string>& words) {
  std::vector<std::string> all;
  for (const std::string& word : words) {
    const std::size_t dots = word.find("..");
    const bool is_range = word.starts_with('{') && word.ends_with('}') && dots != word.npos;
    const ShellValues none;
    const auto first = is_range ? shell_arithmetic(word.substr(1, dots - 1), none) : std::nullopt;
    const auto last = first ? shell_arithmetic(word.substr(dots + 2, word.size() - dots - 3), none)
                            : std::nullopt;
    if (!last || !is_short_range(*first, *last)) {
      all.push_back(last ? marked(kUnknownWordsMark, "", word) : word);
      continue;
    }
    const std::int64_t length = *last - *first;
    for (std::int64_t i = 0; i <= std::abs(length); ++i) {
      all.push_back(std::to_string(*first + (length < 0 ? -i : i)));
    }
  }
  return all;
}

// "i = 0; i < n; i++"
std::vector<std::string> parts_of(const std::string& header) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= header.size();) {
    const std::size_t end = std::min(header.find(';', start), header.size());
    parts.push_back(header.substr(start, end - start));
    start = end + 1;
  }
  parts.resize(3);
  return parts;
}

}  // namespace

// One turn of a loop from where the reader stands; afterwards it stands at the loop's "done".
void ShellInterpreter::turn(const std::vector<std::string>& stops) {
  list(stops);
  if (state_.flow == Flow::kContinue) {
    state_.flow = Flow::kOn;
  }
}

bool ShellInterpreter::ends_loop() {
  if (state_.flow == Flow::kBreak) {
    state_.flow = Flow::kOn;
    return true;
  }
  return state_.flow != Flow::kOn;
}

// All variables, as they are now.
ShellValues ShellInterpreter::copied_values() {
  for (const auto& [name, values] : state_.context.values) {
    std::size_t bytes = 0;
    for (const std::string& value : values) { bytes += value.size(); }
    in_.spend(values.size() * kStepsOfEntry + bytes);
  }
  return state_.context.values;
}

// What a loop of an unknown number of turns has changed is not known behind it.
void ShellInterpreter::forget_changes(const ShellValues& before) {
  std::set<std::string> changed = state_.assigned;
  for (const auto& [name, value] : state_.context.values) {
    const auto old = before.find(name);
    if (old == before.end() || old->second != value) {
      changed.insert(name);
    }
  }
  for (const auto& [name, value] : before) {
    if (!state_.context.values.contains(name)) {
      changed.insert(name);
    }
  }
  for (const std::string& name : changed) {
    if (name.find_first_of("![") == std::string::npos) {  // no keys and entries of a list
      set_unknown(name);
    }
  }
  state_.output_known = false;
}

// Turns as long as `condition`, which leaves the reader in front of a "do", is known to hold; one
// where it is not known.
void ShellInterpreter::repeat(const std::string& keyword,
                              const std::function<Status()>& condition) {
  const std::size_t begin = in_.at;
  const std::int64_t first_line = in_.line;
  const bool was_live = live();
  const ShellValues before = copied_values();
  std::set<std::string> outer = std::exchange(state_.assigned, {});
  const std::size_t turns = state_.turns;
  std::size_t starting = 0;
  for (bool is_first = true;; is_first = false) {
    in_.at = begin;
    in_.line = first_line;
    const std::size_t num_commands = state_.script.commands.size();
    const Status status = condition();
    const std::string text = source(begin);
    expect("do", keyword, first_line);
    const bool unknown = status.truth == Truth::kUnknown;
    const bool is_long = starting == kMostStarting || state_.turns - turns > kMostOfOneLoop;
    const bool open = unknown || is_long || !status.missing.empty();
    const bool holds = live() && (open ? is_first && (unknown || decide(status, first_line, text))
                                       : status.truth == Truth::kTrue);
    {
      const Dead not_taken(*this, !holds);
      turn({"done"});
    }
    expect("done", keyword, first_line);
    starting += state_.script.commands.size() > num_commands ? 1 : 0;
    const bool ends = !was_live || ends_loop();
    if (was_live && open && (holds || !is_first)) {
      forget_changes(before);
    }
    if (ends || open || !holds) {
      break;
    }
  }
  state_.assigned.merge(outer);
}

// Behind "while": the redirections behind the loop's end.
ShellInterpreter::Simple ShellInterpreter::loop_redirections() {
  const std::size_t begin = in_.at;
  const std::int64_t first_line = in_.line;
  {
    const Dead not_run(*this, true);
    list({"do"});
    expect("do", "while", first_line);
    list({"done"});
    expect("done", "while", first_line);
  }
  Simple behind = redirections();
  in_.at = begin;
  in_.line = first_line;
  return behind;
}

ShellInterpreter::Status ShellInterpreter::while_command() {
  const std::string keyword = peek();
  in_.at += keyword.size();
  const Simple behind = live() ? loop_redirections() : Simple{};
  const auto outer_input = state_.input;
  if (behind.reads) {
    state_.input = behind.here;
  }
  repeat(keyword, [&] {
    Status status = list({"do"});
    status.truth = keyword == "until" ? negated(status.truth) : status.truth;
    return status;
  });
  if (behind.reads) {
    state_.input = outer_input;
  }
  return {};
}

// for ((i = 0; i < n; i++)), behind the "for".
ShellInterpreter::Status ShellInterpreter::counting_loop() {
  const std::size_t begin = in_.at + 2;
  const std::int64_t line = in_.line;
  in_.go_to(end_of_group(in_.text, in_.at + 1, ')'));
  const std::vector<std::string> parts =
      parts_of(in_.text.substr(begin, in_.at - std::min(in_.at, begin + 2)));
  std::string before = parts[0];
  repeat("for", [&] {
    if (!live()) {
      return Status{};
    }
    calculated(std::exchange(before, parts[2]), line);
    const bool is_endless = parts[1].find_first_not_of(' ') == std::string::npos;
    return is_endless ? Status{} : calculated(parts[1], line);
  });
  return {};
}

ShellInterpreter::Status ShellInterpreter::for_command() {
  const std::int64_t first_line = in_.line;
  in_.at += peek().size();
  skip_blanks();
  if (in_.begins("((")) {
    return counting_loop();
  }
  const std::string name = peek();
  in_.at += name.size();
  const auto arguments = state_.context.values.find("@");
  Words words = arguments == state_.context.values.end()
                    ? Words{marked(kUnknownWordsMark, "$", "@")}
                    : arguments->second;
  if (!take("in")) {
    state_.context.mentioned.insert("@");
  } else {
    words.clear();
    skip_blanks();
    while (in_.at < in_.text.size() && !ShellWordReader::ends_command(in_.now())) {
      const std::size_t begin = in_.at;
      in_.word(words);
      in_.at += in_.at == begin ? 1 : 0;
      skip_blanks();
    }
    words = with_ranges(words);
  }
  expect("do", "for", first_line);
  const std::size_t body = in_.at;
  const std::int64_t body_line = in_.line;
  const bool runs = live() && !words.empty();
  const ShellValues before = copied_values();
  std::set<std::string> outer = std::exchange(state_.assigned, {});
  for (std::size_t i = 0; i < std::max<std::size_t>(words.size(), 1); ++i) {
    in_.at = body;
    in_.line = body_line;
    const Dead not_run(*this, !runs);
    if (runs) {
      store(name, {words[i]}, false, false);
    }
    turn({"done"});
    if (!runs || ends_loop()) {
      break;
    }
  }
  expect("done", "for", first_line);
  const bool is_open = std::ranges::any_of(
      words, [](const std::string& word) { return word.find(kUnsetMark) != std::string::npos; });
  if (runs && (is_open || !has_known_size(words))) {
    forget_changes(before);
  }
  state_.assigned.merge(outer);
  return {};
}

}  // namespace shardplan
