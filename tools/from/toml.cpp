// torchtitan's configurations (torchtitan/models/*/train_configs/*.toml): settings by their path,
// "training.seq_len".
#include "tools/from/toml.h"

#include <toml++/toml.h>

#include <algorithm>

#include "data/read/json_message.h"
#include "tools/from/file.h"

namespace shardplan {
namespace {

std::string text_of(const toml::node& node, const std::string& opening) {
  if (const auto* text = node.as_string()) {
    return text->get();
  }
  if (const auto* whole = node.as_integer()) {
    return std::to_string(whole->get());
  }
  if (const auto* real = node.as_floating_point()) {
    return exact_text(real->get());
  }
  if (const auto* boolean = node.as_boolean()) {
    return boolean->get() ? "true" : "false";
  }
  throw InputError(opening + "found a date or a nested list, expected a word or a number");
}

// A string stands where a key or a value begins: quotes behind a word or a number open none.
bool may_begin_string(const std::string& text, std::size_t at) {
  return at == 0 || std::string_view(" \t\r\n=.,[{").find(text[at - 1]) != std::string_view::npos;
}

// Behind the string or comment that begins at `at`, or behind one other letter.
std::size_t end_of_piece(const std::string& text, std::size_t at) {
  const char letter = text[at];
  if (letter == '#') {
    return std::min(text.find('\n', at), text.size());
  }
  if ((letter != '"' && letter != '\'') || !may_begin_string(text, at)) {
    return at + 1;
  }
  const bool has_lines = text.compare(at, 3, std::string(3, letter)) == 0;
  const std::string quotes(has_lines ? 3 : 1, letter);
  at += quotes.size();
  while (at < text.size() && text.compare(at, quotes.size(), quotes) != 0) {
    at += text[at] == '\\' && letter == '"' ? 2 : 1;
  }
  at += quotes.size();
  // Two more may belong to a text of several lines.
  for (int more = 0; has_lines && more < 2 && at < text.size() && text[at] == letter; ++more) {
    ++at;
  }
  return at;
}

// Letters outside ASCII stand in strings and comments only. With others toml++ 3.3 does what is
// undefined (is_non_ascii_horizontal_whitespace).
void refuse_foreign_letters(const std::string& text, const std::string& file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  for (std::size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
       at < text.size(); at = end_of_piece(text, at)) {
    if (static_cast<unsigned char>(text[at]) >= 0x80) {
      const auto begin = text.begin();
      const auto line = 1 + std::count(begin, begin + static_cast<std::ptrdiff_t>(at), '\n');
      throw InputError(place(file, line, "") +
                       "found a letter outside ASCII that no quotes stand around, expected TOML");
    }
  }
}

// toml++ builds and frees the tables of a.a.a.a by recursion: as deep as half the file's length.
constexpr std::size_t kLongest = std::size_t{1} << 15;
constexpr int kDeepest = 8;  // "training.seq_len" is two deep

void add_table(RunSettings& settings, const toml::table& table, const std::string& path,
               int depth) {
  for (const auto& [key, node] : table) {
    const std::string name = path + (path.empty() ? "" : ".") + std::string(key.str());
    const std::int64_t line = std::int64_t{node.source().begin.line};
    if (depth > kDeepest) {
      throw InputError(place(settings.file, line, "") + "found tables more than " +
                       std::to_string(kDeepest) +
                       " deep, expected settings such as training.seq_len");
    }
    if (const auto* inner = node.as_table()) {
      add_table(settings, *inner, name, depth + 1);
      continue;
    }
    Setting setting{
        .name = name, .values = {}, .place = place(settings.file, line, "") + name + ": "};
    if (const auto* list = node.as_array()) {
      for (const toml::node& item : *list) {
        setting.values.push_back(text_of(item, setting.place));
      }
    } else {
      setting.values.push_back(text_of(node, setting.place));
    }
    if (!setting.values.empty()) {  // an empty list sets nothing
      settings.arguments.push_back(std::move(setting));
    }
  }
}

}  // namespace

RunSettings settings_from_toml(const std::string& text, const std::string& file) {
  RunSettings settings;
  settings.format = RunFormat::kTorchtitan;
  settings.file = file;
  if (text.size() > kLongest) {
    throw InputError(file + ": found " + std::to_string(text.size()) +
                     " bytes, expected a configuration of at most " + std::to_string(kLongest));
  }
  refuse_foreign_letters(text, file);
  toml::table root;
  try {
    root = toml::parse(text, file);
  } catch (const toml::parse_error& problem) {  // the library's words become ours
    throw InputError(place(file, std::int64_t{problem.source().begin.line}, "") +
                     "found no TOML here: " + std::string(problem.description()));
  }
  add_table(settings, root, "", 1);
  return settings;
}

}  // namespace shardplan
