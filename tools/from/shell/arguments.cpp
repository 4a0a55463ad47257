// $1, $2, ...: `set`, `shift` and `getopts`.
#include <algorithm>

#include "tools/from/shell/expansion.h"
#include "tools/from/shell/interpreter.h"

namespace shardplan {
namespace {

bool is_argument(const std::string& name) {
  return !name.empty() && name != "0" &&
         std::ranges::all_of(name, [](unsigned char letter) { return std::isdigit(letter) != 0; });
}

bool is_open(const std::string& word) {
  return known_word(word).unknown;
}

}  // namespace

// Nothing: the script's caller may give them.
void ShellInterpreter::set_arguments(const std::optional<Words>& words) {
  ShellValues& values = state_.context.values;
  std::erase_if(values, [](const auto& each) {
    return is_argument(each.first) || each.first == "@" || each.first == "*";
  });
  if (!words) {
    return;
  }
  in_.spend(words->size() * kStepsOfEntry);
  for (std::size_t i = 0; i < words->size(); ++i) { values[std::to_string(i + 1)] = {(*words)[i]}; }
  values["@"] = *words;
  values["*"] = *words;
}

// set -e -o pipefail -- a b
void ShellInterpreter::set_options(const Words& words) {
  std::size_t at = 1;
  bool ends = false;
  while (!ends && at < words.size() && (words[at].starts_with('-') || words[at].starts_with('+'))) {
    const std::string& word = words[at];
    ends = word == "--";
    const bool named = !ends && word.ends_with('o') && at + 1 < words.size();
    if (!ends && (word.find('a') != word.npos || (named && words[at + 1] == "allexport"))) {
      state_.exports_all = word.front() == '-';
    }
    at += named ? 2 : 1;
  }
  if (ends || at < words.size()) {
    set_arguments(Words(words.begin() + static_cast<std::ptrdiff_t>(at), words.end()));
  }
}

ShellInterpreter::Status ShellInterpreter::shift(const Words& words) {
  const auto known = words.size() > 1 ? shell_arithmetic(words[1], state_.context.values)
                                      : std::optional<std::int64_t>(1);
  Words arguments = value_of("@").value_or(Words{});
  state_.context.mentioned.insert("@");
  const std::int64_t size = static_cast<std::int64_t>(arguments.size());
  const std::int64_t num_shifted = known ? std::clamp<std::int64_t>(*known, 0, size) : size;
  if (!known || !has_known_size({arguments.begin(), arguments.begin() + num_shifted})) {
    for (std::string& word : arguments) { word = marked(kUnknownWordsMark, "$", plain(word)); }
    set_arguments(arguments);
    return Status{.truth = Truth::kUnknown};
  }
  if (*known == 0) {
    return Status{};
  }
  if (*known < 0 || *known > size) {
    return Status{.truth = Truth::kFalse};
  }
  set_arguments(Words(arguments.begin() + *known, arguments.end()));
  return Status{};
}

// getopts "a:b" NAME [ARGUMENT...]
ShellInterpreter::Status ShellInterpreter::getopts(const Words& words) {
  if (words.size() < 3) {
    return Status{.truth = Truth::kFalse};
  }
  state_.context.mentioned.insert("@");
  const Words arguments =
      words.size() > 3 ? Words(words.begin() + 3, words.end()) : value_of("@").value_or(Words{});
  if (!is_open(words[1]) && std::ranges::none_of(arguments, is_open)) {
    return next_option(words, arguments);
  }
  for (const std::string& name : {words[2], std::string("OPTARG"), std::string("OPTIND")}) {
    set_unknown(name);
  }
  return Status{.truth = Truth::kUnknown, .is_program = true};
}

ShellInterpreter::Status ShellInterpreter::next_option(const Words& words, const Words& arguments) {
  const std::string& options = words[1];
  const std::string& name = words[2];
  const bool is_silent = options.starts_with(':');
  const auto index = shell_arithmetic("OPTIND", state_.context.values);
  std::size_t at = static_cast<std::size_t>(std::max<std::int64_t>(index.value_or(1), 1)) - 1;
  const auto finish = [&](const std::string& option, const std::optional<std::string>& value) {
    store("OPTIND", {std::to_string(at + 1)}, false, false);
    store(name, {option}, false, false);
    value ? store("OPTARG", {*value}, false, false) : unset("OPTARG");
    return Status{};
  };
  const std::string word = at < arguments.size() ? arguments[at] : "";
  if (word.size() < 2 || word.front() != '-' || word == "--") {
    at += word == "--" ? 1 : 0;
    finish("?", std::nullopt);
    return Status{.truth = Truth::kFalse};
  }
  std::size_t& letter_at = state_.option_letter;
  letter_at = letter_at < word.size() ? letter_at : 1;
  const std::string letter(1, word[letter_at++]);
  const std::string rest = word.substr(letter_at);
  if (rest.empty()) {
    letter_at = 1;
    ++at;
  }
  const std::size_t place = letter == ":" ? options.npos : options.find(letter, is_silent ? 1 : 0);
  if (place == options.npos) {
    return finish("?", is_silent ? std::optional(letter) : std::nullopt);
  }
  if (options.compare(place + 1, 1, ":") != 0) {
    return finish(letter, std::nullopt);
  }
  letter_at = 1;
  if (!rest.empty()) {
    ++at;
    return finish(letter, rest);
  }
  if (at >= arguments.size()) {
    return finish(is_silent ? ":" : "?", is_silent ? std::optional(letter) : std::nullopt);
  }
  const std::string& value = arguments[at++];
  return finish(letter, value);
}

}  // namespace shardplan
