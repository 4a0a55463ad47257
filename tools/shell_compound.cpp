// Commands that are made of commands: if, while, for, case, [[ ]], (( )) and ( ).
#include <algorithm>
#include <utility>

#include "data/input_error.h"
#include "tools/shell_interpreter.h"

namespace shardplan {
namespace {

constexpr int kMostOfOneLoop = 64;  // turns of `while true`

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
    if (!last || *last - *first > 1024) {
      all.push_back(word);
      continue;
    }
    for (std::int64_t i = *first; i <= *last; ++i) { all.push_back(std::to_string(i)); }
  }
  return all;
}

bool is_match(const std::string& word) {
  return word == "=" || word == "==" || word == "!=";
}

// The blank behind it, outside quotations.
std::size_t end_of_regex(const std::string& text, std::size_t at) {
  while (at < text.size() && std::string_view(" \t\n").find(text[at]) == std::string_view::npos) {
    const char letter = text[at];
    at += letter == '\\' ? 2 : 1;
    if (letter == '"' || letter == '\'') {
      at = end_of_group(text, at, letter);
    }
  }
  return std::min(at, text.size());
}

}  // namespace

// What the script leaves open, taken as ShellGiven says or else as it was chosen already.
int ShellInterpreter::choose(ShellChoice choice) {
  const auto given = state_.given.choices.find(choice.key);
  if (given != state_.given.choices.end()) {
    choice.taken = given->second;
  }
  const int taken = choice.taken;
  auto& choices = state_.script.choices;
  if (std::ranges::find(choices, choice.key, &ShellChoice::key) == choices.end()) {
    choices.push_back(std::move(choice));
  }
  return taken;
}

// What cannot be known is taken as false.
bool ShellInterpreter::decide(const Status& status, std::int64_t line, const std::string& text) {
  if (status.truth != Truth::kUnknown && status.missing.empty()) {
    return status.truth == Truth::kTrue;
  }
  return choose(
             {.key = place(line) + " " + text,
              .place = place(line),
              .text = text,
              .missing = status.truth == Truth::kUnknown ? std::set<std::string>{} : status.missing,
              .taken = status.truth == Truth::kTrue ? 1 : 0}) == 1;
}

ShellInterpreter::Status ShellInterpreter::if_command() {
  const std::int64_t first_line = in_.line;
  bool decided = !live();
  take("if");
  while (true) {
    skip_separators();
    const std::size_t begin = in_.at;
    const std::int64_t line = in_.line;
    bool holds = false;
    {
      const Dead not_asked(*this, decided);
      const Status status = list({"then"});
      holds = live() && decide(status, line, source(begin));
    }
    expect("then", "if", first_line);
    {
      const Dead not_taken(*this, !holds);
      list({"elif", "else", "fi"});
    }
    decided = decided || holds;
    if (take("elif")) {
      continue;
    }
    if (take("else")) {
      const Dead not_taken(*this, decided);
      list({"fi"});
    }
    expect("fi", "if", first_line);
    return {};
  }
}

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

// As long as the condition is known to hold; once where it is not known.
ShellInterpreter::Status ShellInterpreter::while_command() {
  const std::int64_t first_line = in_.line;
  const bool until = peek() == "until";
  in_.at += 5;
  const std::size_t begin = in_.at;
  const bool was_live = live();
  for (int turns = 0;; ++turns) {
    in_.at = begin;
    in_.line = first_line;
    Status status = list({"do"});
    status.truth = until ? negated(status.truth) : status.truth;
    expect("do", until ? "until" : "while", first_line);
    const bool unknown = status.truth == Truth::kUnknown;
    const bool holds = live() && (status.truth == Truth::kTrue || (unknown && turns == 0)) &&
                       turns < kMostOfOneLoop;
    {
      const Dead not_taken(*this, !holds);
      turn({"done"});
    }
    expect("done", until ? "until" : "while", first_line);
    if (!was_live || !holds || ends_loop() || unknown) {
      return {};
    }
  }
}

ShellInterpreter::Status ShellInterpreter::for_command() {
  const std::int64_t first_line = in_.line;
  in_.at += peek().size();
  skip_blanks();
  const bool counts = in_.begins("((");
  const std::string name = counts ? "" : peek();
  Words words = {""};
  if (counts) {  // for ((i = 0; i < n; i++)): once
    in_.go_to(end_of_group(in_.text, in_.at + 1, ')'));
  } else {
    in_.at += name.size();
    if (take("in")) {
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
  }
  expect("do", "for", first_line);
  const std::size_t body = in_.at;
  const std::int64_t body_line = in_.line;
  const bool runs = live() && !words.empty();
  for (std::size_t i = 0; i < std::max<std::size_t>(words.size(), 1); ++i) {
    in_.at = body;
    in_.line = body_line;
    const Dead not_run(*this, !runs);
    if (runs && !counts) {
      store(name, {words[i]}, false, false);
    }
    turn({"done"});
    if (!runs || ends_loop()) {
      break;
    }
  }
  expect("done", "for", first_line);
  return {};
}

// Whether a branch of `case` is the one of `subject`: "a|b*)". All patterns are read, for the
// variables that they name; what is not known of them is not known of the subject, either.
bool ShellInterpreter::matches_one(KnownWord& subject) {
  bool matches = false;
  in_.splits = false;
  in_.is_pattern = true;
  for (bool ends = false; !ends && in_.at < in_.text.size();) {
    skip_blanks();
    const std::size_t begin = in_.at;
    Words words;
    in_.word(words);
    const KnownWord pattern = known_word(words.empty() ? "" : words.front());
    const bool is_extended = in_.now() == '(';  // @(a|b)
    matches = matches || (!words.empty() && matches_pattern(subject.text, pattern.text));
    subject.missing.insert(pattern.missing.begin(), pattern.missing.end());
    subject.unknown = subject.unknown || pattern.unknown || is_extended;
    if (is_extended) {
      in_.go_to(end_of_group(in_.text, in_.at + 1, ')'));
    } else if (in_.at == begin) {  // '|', a line's end
      ends = in_.now() == ')';
      in_.next();
    }
  }
  in_.splits = true;
  in_.is_pattern = false;
  return matches;
}

ShellInterpreter::Status ShellInterpreter::case_command() {
  const std::int64_t first_line = in_.line;
  in_.at += 4;
  skip_blanks();
  const std::size_t begin = in_.at;
  Words subject;
  in_.splits = false;
  in_.word(subject);
  in_.splits = true;
  const std::string text = "case " + source(begin);
  KnownWord known = known_word(subject.empty() ? "" : subject.front());
  known.text = known.unknown ? "" : known.text;
  expect("in", "case", first_line);
  // Branches are counted before one is taken: they are read twice.
  const std::size_t branches = in_.at;
  const std::int64_t branches_line = in_.line;
  int matching = 0;
  int number = 0;
  const auto read_branches = [&](int taken) {
    in_.at = branches;
    in_.line = branches_line;
    number = 0;
    bool falls = false;  // behind ";&"
    bool tests = false;  // behind ";;&"
    while (!take("esac")) {
      if (in_.at >= in_.text.size()) {
        expect("esac", "case", first_line);
      }
      in_.at += in_.now() == '(' ? 1 : 0;
      const bool matches = matches_one(known);
      ++number;
      matching = matches && matching == 0 ? number : matching;
      const bool runs = number == taken || falls || (tests && matches);
      {
        const Dead not_taken(*this, !runs);
        list({"esac"});
      }
      falls = runs && in_.begins(";&");
      tests = runs ? in_.begins(";;&") : tests;
      while (in_.now() == ';' || (in_.now() == '&' && in_.at < in_.text.size())) { in_.next(); }
    }
  };
  read_branches(-1);
  if (live()) {
    int taken = matching;
    if (known.unknown || !known.missing.empty()) {
      taken = choose({.key = place(first_line) + " " + text,
                      .place = place(first_line),
                      .text = text,
                      .missing = known.unknown ? std::set<std::string>{} : known.missing,
                      .taken = matching,
                      .alternatives = number + 1});
    }
    read_branches(taken);
  }
  return {};
}

// [[ ... ]]
ShellInterpreter::Status ShellInterpreter::condition() {
  in_.at += 2;
  Words words;
  const std::int64_t first_line = in_.line;
  in_.splits = false;
  while (true) {
    skip_blanks();
    if (in_.at >= in_.text.size()) {
      throw InputError(place(first_line) + ": found '[[' without an end, expected ']]'");
    }
    if (in_.now() == '\n') {
      in_.next();
    } else if (in_.begins("&&") || in_.begins("||")) {
      words.push_back(in_.text.substr(in_.at, 2));
      in_.at += 2;
    } else if (!words.empty() && words.back() == "=~") {  // a pattern with operators of its own
      const std::size_t end = end_of_regex(in_.text, in_.at);
      ShellWordReader regex(in_.text.substr(in_.at, end - in_.at), in_.file, state_.context);
      regex.is_pattern = true;
      words.push_back(regex.one_word());
      in_.go_to(end);
    } else if (std::string_view("()<>;|&").find(in_.now()) != std::string_view::npos) {
      words.emplace_back(1, in_.now());
      in_.next();
    } else {
      const bool ends = peek() == "]]";
      in_.is_pattern = !words.empty() && is_match(words.back());
      in_.word(words);
      in_.is_pattern = false;
      if (ends) {
        words.pop_back();
        break;
      }
    }
  }
  in_.splits = true;
  const ShellTruth truth = shell_condition(words);
  return {.truth = truth.truth, .missing = truth.missing};
}

// ((...)): NAME++, NAME+=value and NAME=value, else a condition.
ShellInterpreter::Status ShellInterpreter::arithmetic() {
  const std::size_t end = end_of_group(in_.text, in_.at + 1, ')');
  std::string text = in_.text.substr(in_.at + 2, end - std::min(end, in_.at + 4));
  in_.go_to(end);
  std::erase(text, ' ');
  std::size_t name_end = 0;
  while (name_end < text.size() && is_name_letter(text[name_end])) { ++name_end; }
  const std::string name = text.substr(0, name_end);
  std::string rest = text.substr(name_end);
  const bool sets = rest.starts_with("++") || rest.starts_with("--") || rest.starts_with("+=") ||
                    rest.starts_with("-=") || (rest.starts_with("=") && !rest.starts_with("=="));
  if (is_shell_name(name) && sets) {
    if (live()) {
      const std::string by = rest.ends_with("=") || rest == "++" || rest == "--"
                                 ? "1"
                                 : rest.substr(rest.find('=') + 1);
      const std::string formula =
          rest.starts_with("=") ? by : name + rest.substr(0, 1) + "(" + by + ")";
      const std::optional<std::int64_t> value = shell_arithmetic(formula, state_.context.values);
      store(name, {value ? std::to_string(*value) : marked(kUnknownMark, "", text)}, false, false);
    }
    return {};
  }
  const std::optional<std::int64_t> value = shell_arithmetic(text, state_.context.values);
  return {.truth = !value ? Truth::kUnknown : *value != 0 ? Truth::kTrue : Truth::kFalse};
}

ShellInterpreter::Status ShellInterpreter::subshell() {
  const std::int64_t line = in_.line;
  in_.next();
  {
    std::optional<Apart> apart;
    if (live()) {
      apart.emplace(*this);
    }
    list({});
    // A list of no stops ends where the script exits: the rest is read over.
    if (apart && state_.flow != Flow::kOn) {
      if (std::exchange(state_.flow, Flow::kOn) == Flow::kExit) {
        state_.script.exits_at.clear();
      }
      const Dead over(*this, true);
      list({});
    }
  }
  skip_separators();
  if (in_.now() != ')' || in_.at >= in_.text.size()) {
    throw InputError(place(line) + ": found '(' without an end, expected ')'");
  }
  in_.next();
  return {.truth = Truth::kUnknown, .is_program = true};
}

}  // namespace shardplan
