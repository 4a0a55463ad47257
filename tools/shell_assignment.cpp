// Variables of a script: assignments, lists, declarations; and redirections.
#include <algorithm>

#include "data/input_error.h"
#include "tools/shell_interpreter.h"

namespace shardplan {
namespace {

const std::vector<std::string> kDeclarations = {"export", "local", "readonly", "declare",
                                                "typeset"};

bool is_declaration(const std::string& word) {
  return std::ranges::find(kDeclarations, word) != kDeclarations.end();
}

std::size_t bytes_of(const std::vector<std::string>& words) {
  std::size_t bytes = 0;
  for (const std::string& word : words) { bytes += word.size() + 1; }
  return bytes;
}

}  // namespace

// NAME=value, NAME+=value, NAME[key]=value, NAME=(...): only in front of a command's words, or
// behind export and its like.
bool ShellInterpreter::assignment(Simple& simple) {
  const bool declares = !simple.words.empty() && is_declaration(simple.words.front());
  if (!simple.words.empty() && !declares && simple.words.front() != "env") {
    return false;
  }
  std::size_t end = in_.at;
  while (end < in_.text.size() && is_name_letter(in_.text[end])) { ++end; }
  std::string name = in_.text.substr(in_.at, end - in_.at);
  if (!is_shell_name(name)) {
    return false;
  }
  if (end < in_.text.size() && in_.text[end] == '[') {
    const std::size_t close = std::min(in_.text.find_first_of("]\n", end), in_.text.size() - 1);
    const std::string key =
        ShellWordReader(in_.text.substr(end + 1, close - end - 1), in_.file, state_.context)
            .one_word();
    name.append("[").append(plain(key)).append("]");
    end = close + 1;
  }
  const bool appends = in_.text.compare(end, 2, "+=") == 0;
  if (!appends && in_.text.compare(end, 1, "=") != 0) {
    return false;
  }
  in_.at = end + (appends ? 2 : 1);
  const bool is_array = in_.now() == '(';
  Words value;
  if (is_array) {
    array(name, value);
  } else {
    Words pieces;
    in_.splits = false;
    in_.sets = live();
    in_.word(pieces);
    in_.splits = true;
    value = {""};
    for (std::size_t i = 0; i < pieces.size(); ++i) {  // "${LIST[@]}" is one value here
      value.front().append(i > 0 ? " " : "").append(pieces[i]);
    }
  }
  state_.context.mentioned.insert(name.substr(0, name.find('[')));
  if (!live()) {
    return true;
  }
  const auto old = state_.context.values.find(name);
  const auto before =
      old == state_.context.values.end() ? std::nullopt : std::optional(old->second);
  if (!declares) {
    simple.before.insert({name, before});
  } else if (!state_.scopes.empty() && simple.words.front() != "export") {
    state_.scopes.back().insert({name, before});
  }
  store(name, std::move(value), appends, is_array);
  if (declares) {
    Words named = simple.words;
    named.push_back(name);
    declare(named);
  }
  return true;
}

void ShellInterpreter::array(const std::string& name, Words& value) {
  const std::int64_t first_line = in_.line;
  in_.next();
  while (in_.at < in_.text.size()) {
    skip_blanks();
    if (in_.now() == ')') {
      in_.next();
      return;
    }
    const std::size_t begin = in_.at;
    const std::size_t first = value.size();
    const bool keyed = in_.now() == '[';
    in_.word(value);
    const std::size_t middle =
        keyed && value.size() > first ? value[first].find("]=") : std::string::npos;
    if (middle != std::string::npos) {  // [key]=value
      store(name + plain(value[first].substr(0, middle + 1)), {value[first].substr(middle + 2)},
            false, false);
    }
    if (in_.at == begin) {  // what begins no word: a line's end, an operator
      in_.next();
    }
  }
  throw InputError(place(first_line) + ": found a list without an end, expected ')'");
}

// What the user has given stays.
void ShellInterpreter::store(const std::string& name, Words value, bool appends, bool is_array) {
  state_.context.mentioned.insert(name.substr(0, name.find('[')));
  if (!live() || state_.given.values.contains(name)) {
    return;
  }
  constexpr std::size_t kMostBytes = std::size_t{1} << 21;  // A+=$A, forty times
  Words& stored = state_.context.values[name];
  const bool is_entry = !is_array && state_.arrays.contains(name) && !stored.empty();
  if (!appends && is_entry) {
    stored.front() = value.empty() ? std::string() : value.front();  // LIST=x is LIST[0]=x
  } else if (!appends) {
    stored = std::move(value);
    is_array ? (void)state_.arrays.insert(name) : (void)state_.arrays.erase(name);
  } else if (is_array) {
    stored.insert(stored.end(), value.begin(), value.end());
    state_.arrays.insert(name);
  } else {
    stored.resize(std::max<std::size_t>(stored.size(), 1));
    stored.front().append(value.empty() ? std::string() : value.front());
  }
  if (bytes_of(stored) > kMostBytes) {
    throw InputError(place(in_.line) + ": found variables that come to more than " +
                     std::to_string(kMostBytes) + " bytes, expected a launch script");
  }
}

// export NAME, declare -x NAME, local NAME; assignments among them are stored already.
void ShellInterpreter::declare(const Words& words) {
  const auto has = [&](const char* flag) { return std::ranges::find(words, flag) != words.end(); };
  const bool exports = has("export") || has("-x");
  if (has("-f") || has("-n")) {
    return;
  }
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (!is_shell_name(words[i])) {
      continue;
    }
    if (exports) {
      state_.exported.insert(words[i]);
      state_.script.export_line[words[i]] = in_.line;
    } else if (has("local") && !state_.scopes.empty() && !state_.scopes.back().contains(words[i])) {
      const auto old = state_.context.values.find(words[i]);
      state_.scopes.back()[words[i]] =
          old == state_.context.values.end() ? std::nullopt : std::optional(old->second);
    }
  }
}

// $1, $2, ...; those that the user has given stay.
void ShellInterpreter::set_arguments(const Words& words) {
  ShellValues& values = state_.context.values;
  std::erase_if(values, [](const auto& each) {
    return std::isdigit(static_cast<unsigned char>(each.first.front())) != 0;
  });
  for (std::size_t i = 0; i < words.size(); ++i) { values[std::to_string(i + 1)] = {words[i]}; }
  values["@"] = words;
  values["*"] = words;
}

void ShellInterpreter::restore(
    const std::map<std::string, std::optional<std::vector<std::string>>>& before) {
  for (const auto& [name, value] : before) {
    if (value) {
      state_.context.values[name] = *value;
    } else {
      state_.context.values.erase(name);
    }
  }
}

// "2>&1", "> file", "<<EOF", "<<< word", "< <(...)". `here_end`: behind the command's
// here-documents so far.
void ShellInterpreter::redirection(Simple& simple, std::size_t& here_end) {
  const bool here = in_.begins("<<") && !in_.begins("<<<");
  const bool indented = in_.begins("<<-");
  const bool writes = in_.now() == '>';
  while (in_.now() == '<' || in_.now() == '>' || in_.now() == '&' ||
         (indented && in_.now() == '-')) {
    in_.next();
  }
  if (in_.now() == '(') {  // <(...)
    in_.go_to(end_of_group(in_.text, in_.at + 1, ')'));
    return;
  }
  skip_blanks();
  if (in_.now() == '<' && in_.ahead() == '(') {
    in_.go_to(end_of_group(in_.text, in_.at + 2, ')'));
    return;
  }
  const std::size_t begin = in_.at;
  Words target;
  if (in_.at < in_.text.size() && !ShellWordReader::ends_command(in_.now())) {
    in_.word(target);
  }
  if (!here || target.empty()) {
    simple.target = writes && !target.empty() ? plain(target.front()) : simple.target;
    return;
  }
  const std::string raw = in_.text.substr(begin, in_.at - begin);
  const bool is_literal = raw.find_first_of("'\"\\") != std::string::npos;
  const std::size_t line_end = std::min(in_.text.find('\n', in_.at), in_.text.size());
  const std::size_t body = here_end > 0 ? here_end : std::min(line_end + 1, in_.text.size());
  std::size_t body_end = 0;
  here_end = end_of_here_document(in_.text, body, plain(target.front()), indented, body_end);
  in_.jumps[line_end] = here_end;
  std::string content = in_.text.substr(body, body_end - body);
  if (!is_literal && live()) {
    content = ShellWordReader(content, in_.file, state_.context, in_.line + 1).here_document();
  }
  simple.here = content;
}

}  // namespace shardplan
