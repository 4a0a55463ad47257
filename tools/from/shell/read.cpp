// Commands of a script that set variables to what they read.
#include <algorithm>

#include "tools/from/shell/interpreter.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

bool is_blank(char letter) {
  return letter == ' ' || letter == '\t' || letter == '\n';
}

// At most `most` of a line, the last of them with all of the rest.
Words fields_of(const std::string& line, const std::string& separators, std::size_t most) {
  const auto separates = [&](char letter) { return separators.find(letter) != std::string::npos; };
  Words fields;
  std::size_t at = 0;
  const auto skip_blanks = [&] {
    while (at < line.size() && is_blank(line[at]) && separates(line[at])) { ++at; }
  };
  skip_blanks();
  while (at < line.size()) {
    std::size_t end = fields.size() + 1 < most ? line.find_first_of(separators, at) : line.size();
    end = std::min(end, line.size());
    std::string field = line.substr(at, end - at);
    at = end;
    while (!field.empty() && is_blank(field.back()) && separates(field.back())) {
      field.pop_back();
    }
    fields.push_back(field);
    skip_blanks();
    at += at < line.size() && separates(line[at]) && !is_blank(line[at]) ? 1 : 0;
    skip_blanks();
  }
  return fields;
}

}  // namespace

std::optional<ShellInterpreter::Status> ShellInterpreter::reading(const Simple& simple) {
  const std::string& name = simple.words.front();
  if (name == "read") {
    return read(simple);
  }
  if (name == "mapfile" || name == "readarray") {
    read_lines(simple);
    return Status{};
  }
  return std::nullopt;
}

// read [-r] [-a] [-p prompt] NAME...
ShellInterpreter::Status ShellInterpreter::read(const Simple& simple) {
  constexpr std::string_view kWithValue = "dinNptu";
  Words names;
  bool is_list = false;
  bool is_line = true;
  bool is_raw = false;
  for (std::size_t i = 1; i < simple.words.size(); ++i) {
    const std::string& word = simple.words[i];
    if (!word.starts_with('-')) {
      names.push_back(plain(word));
      continue;
    }
    const bool has_value = kWithValue.find(word.back()) != std::string_view::npos;
    is_list = is_list || word.ends_with('a');
    is_raw = is_raw || word.find('r') != std::string::npos;
    is_line = is_line && (!has_value || word.back() == 'p');
    i += has_value ? 1 : 0;
  }
  if (names.empty()) {
    names.emplace_back("REPLY");
  }
  std::optional<std::string>& input = state_.input;
  const std::optional<std::string> text = simple.reads ? simple.here : input;
  if (!text || !is_line || plain(*text) != *text ||
      (!is_raw && text->find('\\') != std::string::npos)) {
    for (const std::string& name : names) { set_unknown(name); }
    state_.output_known = false;
    return {.truth = Truth::kUnknown, .is_program = true};
  }
  const std::size_t end = std::min(text->find('\n'), text->size());
  const Words fields = fields_of(text->substr(0, end), field_separators(state_.context.values),
                                 is_list ? text->size() + 1 : names.size());
  if (is_list) {
    store(names.front(), fields, false, true);
  }
  for (std::size_t i = 0; i < names.size() && !is_list; ++i) {
    store(names[i], {i < fields.size() ? fields[i] : ""}, false, false);
  }
  if (!simple.reads) {
    input = text->substr(std::min(end + 1, text->size()));
  }
  return {.truth = end < text->size() ? Truth::kTrue : Truth::kFalse};
}

// mapfile -t NAME
void ShellInterpreter::read_lines(const Simple& simple) {
  const Words& words = simple.words;
  const std::string name = words.size() > 1 ? plain(words.back()) : "";
  const bool is_known =
      simple.here && plain(*simple.here) == *simple.here && words.size() == 3 && words[1] == "-t";
  if (!is_known) {
    set_unknown(is_shell_name(name) ? name : "MAPFILE");
    return;
  }
  Words lines;
  for (std::size_t start = 0; start < simple.here->size();) {
    const std::size_t end = std::min(simple.here->find('\n', start), simple.here->size());
    lines.push_back(simple.here->substr(start, end - start));
    start = end + 1;
  }
  store(name, lines, false, true);
}

}  // namespace shardplan
