// Commands that are made of commands: if, case, [[ ]], (( )) and ( ).
#include <algorithm>
#include <utility>

#include "data/read/input_error.h"
#include "tools/from/shell/expansion.h"
#include "tools/from/shell/interpreter.h"

namespace shardplan {
namespace {

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
  in_.spend(choices.size() * kStepsOfEntry);
  if (std::ranges::find(choices, choice.key, &ShellChoice::key) == choices.end()) {
    choices.push_back(std::move(choice));
  }
  return taken;
}

bool ShellInterpreter::decide(const Status& status, std::int64_t line, const std::string& text) {
  const bool unknown = status.truth == Truth::kUnknown;
  if (!unknown && status.missing.empty()) {
    return status.truth == Truth::kTrue;
  }
  return choose({.key = place(line) + " " + text,
                 .place = place(line),
                 .text = text,
                 .missing = unknown ? std::set<std::string>{} : status.missing,
                 .taken = (unknown ? status.expected : status.truth) == Truth::kTrue ? 1 : 0}) == 1;
}

ShellInterpreter::Status ShellInterpreter::if_command() {
  const std::int64_t first_line = in_.line;
  bool decided = !live();
  Status result;
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
      const Status status = list({"elif", "else", "fi"});
      result = holds ? status : result;
    }
    decided = decided || holds;
    if (take("elif")) {
      continue;
    }
    if (take("else")) {
      const Dead not_taken(*this, decided);
      const Status status = list({"fi"});
      result = decided ? result : status;
    }
    expect("fi", "if", first_line);
    return result;
  }
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
  Status result;
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
      Status status;
      {
        const Dead not_taken(*this, !runs);
        status = list({"esac"});
      }
      result = runs ? status : result;
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
  return result;
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
  for (std::size_t i = 1; i + 1 < words.size(); ++i) {
    if (compares_numbers(words[i])) {
      words[i - 1] = number(words[i - 1]);
      words[i + 1] = number(words[i + 1]);
    }
  }
  return tested(std::move(words));
}

// Numbers between [[ and ]] are expressions, of which an empty one is 0.
std::string ShellInterpreter::number(const std::string& word) {
  const KnownWord known = known_word(word);
  if (known.text.empty() || !known.missing.empty()) {
    return known.unknown || !known.text.empty() ? word : word + "0";
  }
  const auto value = ShellWordReader(word, in_.file, state_.context, in_.line).arithmetic();
  return value ? std::to_string(*value) : marked(kUnknownMark, "", plain(word));
}

// A condition on how a program ended is expected to find that it succeeded.
ShellInterpreter::Status ShellInterpreter::tested(Words words) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "-v") {
      const std::string name = words[i + 1];
      const bool is_set = !is_shell_name(name) || state_.context.values.contains(name);
      words[i] = "-n";
      words[i + 1] = is_set
                         ? ShellWordReader("${" + name + "+1}", in_.file, state_.context).one_word()
                         : marked(kUnsetMark, "$", name);
    }
  }
  const ShellTruth truth = shell_condition(words);
  Status status{.truth = truth.truth, .missing = truth.missing};
  if (status.truth == Truth::kUnknown) {
    for (std::string& word : words) { word = plain(word) == "$?" ? "0" : word; }
    status.expected = shell_condition(words).truth;
  }
  return status;
}

// ((...))
ShellInterpreter::Status ShellInterpreter::arithmetic() {
  const std::size_t begin = in_.at + 2;
  const std::int64_t line = in_.line;
  in_.go_to(end_of_group(in_.text, in_.at + 1, ')'));
  in_.spend((in_.at - begin) * kStepsOfLetter);
  const std::string text = in_.text.substr(begin, in_.at - std::min(in_.at, begin + 2));
  return live() ? calculated(text, line) : Status{};
}

ShellInterpreter::Status ShellInterpreter::calculated(const std::string& text, std::int64_t line) {
  const auto value = ShellWordReader(text, in_.file, state_.context, line).arithmetic();
  return {.truth = !value ? Truth::kUnknown : *value != 0 ? Truth::kTrue : Truth::kFalse};
}

ShellInterpreter::Status ShellInterpreter::subshell() {
  const std::int64_t line = in_.line;
  in_.next();
  Status status;
  {
    std::optional<Apart> apart;
    if (live()) {
      apart.emplace(*this);
      state_.last = {};
    }
    list({});
    status = state_.last;
    // A list of no stops ends where the script exits: the rest is read over.
    if (apart && state_.flow != Flow::kOn) {
      state_.flow = Flow::kOn;
      const Dead over(*this, true);
      list({});
    }
  }
  skip_separators();
  if (in_.now() != ')' || in_.at >= in_.text.size()) {
    throw InputError(place(line) + ": found '(' without an end, expected ')'");
  }
  in_.next();
  return status;
}

}  // namespace shardplan
