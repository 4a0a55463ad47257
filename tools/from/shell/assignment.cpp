// Variables of a script: assignments, lists, declarations; and redirections.
#include "tools/from/shell/assignment.h"

#include <algorithm>

#include "data/read/input_error.h"
#include "tools/from/shell/expansion.h"
#include "tools/from/shell/interpreter.h"
#include "tools/from/shell/list.h"

namespace shardplan {
namespace {

const std::vector<std::string> kDeclarations = {"export", "local", "readonly", "declare",
                                                "typeset"};

// "-A" or "-gA" among the words of a declaration.
bool has_flag(const std::vector<std::string>& words, char flag) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    return word.starts_with('-') && word.find(flag) != std::string::npos;
  });
}

std::size_t bytes_of(const std::vector<std::string>& words) {
  std::size_t bytes = 0;
  for (const std::string& word : words) { bytes += word.size() + 1; }
  return bytes;
}

}  // namespace

bool is_declaration(const std::string& word) {
  return std::ranges::find(kDeclarations, word) != kDeclarations.end();
}

// NAME or NAME[key] in front of "=" or "+=", where the reader stands then; else "".
std::string ShellInterpreter::assigned_name() {
  std::size_t end = in_.at;
  while (end < in_.text.size() && is_name_letter(in_.text[end])) { ++end; }
  std::string name = in_.text.substr(in_.at, end - in_.at);
  if (!is_shell_name(name)) {
    return "";
  }
  std::string key;
  const bool is_entry = in_.text.compare(end, 1, "[") == 0;
  if (is_entry) {  // its key stands in one line
    const std::string rest = in_.text.substr(end + 1, in_.text.find('\n', end) - end - 1);
    const std::size_t close = end_of_group(rest, 0, ']');
    in_.spend(close * kStepsOfLetter);
    if (close == 0 || rest[close - 1] != ']') {
      return "";
    }
    key = rest.substr(0, close - 1);
    end += 1 + close;
  }
  const bool assigns = in_.text.compare(end, 1, "=") == 0 || in_.text.compare(end, 2, "+=") == 0;
  if (!assigns) {
    return "";
  }
  in_.at = end;
  if (is_entry) {
    key = ShellWordReader(key, in_.file, state_.context, in_.line).one_word();
    name.append("[").append(key).append("]");
  }
  return name;
}

// NAME=value, NAME+=value, NAME[key]=value, NAME=(...): only in front of a command's words, or
// behind export and its like.
bool ShellInterpreter::assignment(Simple& simple) {
  const bool declares = !simple.words.empty() && is_declaration(simple.words.front());
  const bool is_environment = !simple.words.empty() && simple.words.front() == "env";
  if (!simple.words.empty() && !declares && !is_environment) {
    return false;
  }
  const std::string name = assigned_name();
  if (name.empty()) {
    return false;
  }
  const bool appends = in_.now() == '+';
  in_.at += appends ? 2 : 1;
  const bool is_array = in_.now() == '(';
  Words value;
  std::map<std::size_t, std::string> keys;
  if (is_array) {
    array(value, keys);
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
  const std::string list = list_of(name);
  state_.context.mentioned.insert(list);
  if (!live()) {
    return true;
  }
  if (!declares) {
    for (const std::string& each : {list, keys_of(list)}) {
      simple.before.insert({each, value_of(each)});
    }
  } else if (simple.words.front() != "export" && !has_flag(simple.words, 'g')) {
    make_local(list);
  }
  if (declares && has_flag(simple.words, 'A')) {
    state_.context.maps.insert(list);
  }
  is_array ? store_array(name, value, keys, appends) : store(name, value, appends, false);
  if (declares) {
    Words named = simple.words;
    named.push_back(name);
    declare(named);
  } else if (is_environment) {
    set_aside(simple);
  }
  return true;
}

// `keys`: of the values that have one, [key]=value.
void ShellInterpreter::array(Words& value, std::map<std::size_t, std::string>& keys) {
  const std::int64_t first_line = in_.line;
  in_.next();
  while (in_.at < in_.text.size()) {
    skip_blanks();
    if (in_.now() == ')') {
      in_.next();
      return;
    }
    const std::size_t begin = in_.at;
    const std::size_t close =
        in_.now() == '[' ? end_of_group(in_.text, begin + 1, ']') : std::string::npos;
    if (close != std::string::npos && in_.text.compare(close, 1, "=") == 0) {
      keys[value.size()] = ShellWordReader(in_.text.substr(begin + 1, close - begin - 2), in_.file,
                                           state_.context, in_.line)
                               .one_word();
      in_.go_to(close + 1);
      Words pieces;
      in_.splits = false;
      in_.word(pieces);
      in_.splits = true;
      value.push_back(pieces.empty() ? "" : pieces.front());
      continue;
    }
    in_.word(value);
    if (in_.at == begin) {  // what begins no word: a line's end, an operator
      in_.next();
    }
  }
  throw InputError(place(first_line) + ": found a list without an end, expected ')'");
}

// NAME or NAME[key]. What the user has given stays.
void ShellInterpreter::store(const std::string& name, Words value, bool appends, bool is_array) {
  const std::string list = list_of(name);
  state_.context.mentioned.insert(list);
  if (!live() || state_.given.values.contains(list)) {
    return;
  }
  state_.assigned.insert(list);
  if (state_.exports_all) {
    state_.exported.insert(list);
    state_.script.export_line[list] = in_.line;
  }
  if (state_.integers.contains(list) && !is_array && value.size() == 1) {
    const auto number = shell_arithmetic((appends ? name + "+" : "") + "(" + value.front() + ")",
                                         state_.context.values);
    value = {number ? std::to_string(*number) : marked(kUnknownMark, "$", name)};
    appends = false;
  }
  const std::string first = value.empty() ? std::string() : value.front();
  if (list != name) {
    store_entry(list, name.substr(list.size() + 1, name.size() - list.size() - 2), first, appends);
    return;
  }
  constexpr std::size_t kMostBytes = std::size_t{1} << 21;  // A+=$A, forty times
  Words& stored = state_.context.values[name];
  const bool is_entry = !is_array && state_.arrays.contains(name) && !stored.empty();
  if (is_array && !appends) {
    stored = std::move(value);
    state_.arrays.insert(name);
    state_.context.values.erase(keys_of(name));
  } else if (is_array) {
    state_.arrays.insert(name);
    for (const std::string& each : value) {
      set_list_entry(state_.context.values, name, next_list_key(state_.context.values, name), each);
    }
  } else if (is_entry) {  // LIST=x is LIST[0]=x
    stored.front() = (appends ? stored.front() : std::string()) + first;
  } else {
    stored = {(appends && !stored.empty() ? stored.front() : std::string()) + first};
    state_.context.values.erase(keys_of(name));
  }
  if (bytes_of(stored) > kMostBytes) {
    throw InputError(place(in_.line) + ": $" + name + ": found more than " +
                     std::to_string(kMostBytes) + " bytes, expected a launch script");
  }
}

// Of an entry that is not known no other one is, either.
void ShellInterpreter::store_entry(const std::string& name, const std::string& index,
                                   const std::string& value, bool appends) {
  ShellValues& values = state_.context.values;
  const std::optional<std::string> key = list_key(state_.context, name, index);
  if (!key) {
    const std::string unknown = marked(kUnknownWordsMark, "$", name);
    store(name, Words(std::max<std::size_t>(values[name].size(), 1), unknown), false, true);
    return;
  }
  in_.spend(values[name].size() * kStepsOfEntry);
  const std::string* const old = appends ? list_entry(values, name, *key) : nullptr;
  state_.arrays.insert(name);
  set_list_entry(values, name, *key, (old != nullptr ? *old : std::string()) + value);
}

void ShellInterpreter::store_array(const std::string& name, const Words& value,
                                   const std::map<std::size_t, std::string>& keys, bool appends) {
  if (keys.empty()) {
    store(name, value, appends, true);
    return;
  }
  if (!appends) {
    store(name, {}, false, true);
  }
  std::string next = next_list_key(state_.context.values, name);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const auto key = keys.find(i);
    const std::string index = key != keys.end() ? key->second : next;
    store(std::string(name).append("[").append(index).append("]"), {value[i]}, false, false);
    const auto number = shell_arithmetic(index, state_.context.values);
    next = number ? key_behind(*number) : next;
  }
}

// export NAME, declare -x NAME, local NAME; assignments among them are stored already.
void ShellInterpreter::declare(const Words& words) {
  const bool exports = words.front() == "export" || has_flag(words, 'x');
  const bool refers = words.front() != "export" && has_flag(words, 'n');
  if (has_flag(words, 'f') || (has_flag(words, 'n') && !refers)) {
    return;
  }
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (!is_shell_name(words[i])) {
      continue;
    }
    if (has_flag(words, 'A')) {
      state_.context.maps.insert(words[i]);
    }
    if (exports) {
      state_.exported.insert(words[i]);
      state_.script.export_line[words[i]] = in_.line;
    } else if (words.front() == "local" && make_local(words[i])) {
      unset(words[i]);
    }
    if (refers) {  // another name of a variable: what happens to either is not followed
      const std::optional<Words> other = value_of(words[i]);
      if (other && other->size() == 1) {
        set_unknown(other->front());
      }
      set_unknown(words[i]);
    }
    if (has_flag(words, 'i')) {
      state_.integers.insert(words[i]);
      const std::optional<Words> value = value_of(words[i]);
      if (value) {
        store(words[i], *value, false, state_.arrays.contains(words[i]));
      }
    }
  }
}

// A value, or a list of any size.
void ShellInterpreter::set_unknown(const std::string& name) {
  store(name, {marked(kUnknownWordsMark, "$", plain(name))}, false, state_.arrays.contains(name));
}

// Of the function that is being called; false if it is already, or there is none.
bool ShellInterpreter::make_local(const std::string& name) {
  if (state_.scopes.empty()) {
    return false;
  }
  state_.scopes.back().insert({keys_of(name), value_of(keys_of(name))});
  return state_.scopes.back().insert({name, value_of(name)}).second;
}

// NAME or NAME[key]. What the user has given stays.
void ShellInterpreter::unset(const std::string& name) {
  const std::string list = list_of(name);
  if (state_.given.values.contains(list)) {
    return;
  }
  if (list == name) {
    for (const std::string& each : {name, keys_of(name)}) { state_.context.values.erase(each); }
    state_.arrays.erase(name);
    return;
  }
  const std::string index = name.substr(list.size() + 1, name.size() - list.size() - 2);
  const std::optional<std::string> key = list_key(state_.context, list, index);
  key ? erase_list_entry(state_.context.values, list, *key) : store_entry(list, index, "", false);
}

std::optional<std::vector<std::string>> ShellInterpreter::value_of(const std::string& name) const {
  const auto found = state_.context.values.find(name);
  return found == state_.context.values.end() ? std::nullopt : std::optional(found->second);
}

// A command's words are read with the values outside.
void ShellInterpreter::set_aside(Simple& simple) {
  for (const auto& [name, value] : simple.before) { simple.own.insert({name, value_of(name)}); }
  restore(simple.before);
  state_.assigned = simple.assigned;
}

void ShellInterpreter::restore(const ShellState::Scope& before) {
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
  const bool is_word = in_.begins("<<<");
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
  simple.reads = simple.reads || !writes;
  skip_blanks();
  if (in_.now() == '<' && in_.ahead() == '(') {
    const std::size_t inner = in_.at + 2;
    in_.go_to(end_of_group(in_.text, inner, ')'));
    const std::optional<std::string> output =
        writes ? std::nullopt : substitute(in_.text.substr(inner, in_.at - inner - 1));
    simple.here = output ? std::optional(*output + "\n") : std::nullopt;
    return;
  }
  const std::size_t begin = in_.at;
  Words target;
  if (in_.at < in_.text.size() && !ShellWordReader::ends_command(in_.now())) {
    in_.splits = !is_word;
    in_.word(target);
    in_.splits = true;
  }
  if (is_word && !target.empty()) {
    simple.here = target.front() + "\n";
    return;
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
