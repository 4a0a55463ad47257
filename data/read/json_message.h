// How the JSON reader names places and shows values in its messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

// kUnchecked: a token that the parser has refused, which may not even be UTF-8.
enum class Encoding { kUtf8, kUnchecked };

// Printable text, cut after 60 bytes (at a character boundary); what cannot be printed becomes '?'.
std::string shown(std::string_view text, Encoding encoding);

// "file:line: /pointer: ", without the pointer at the root.
std::string place(const std::string& file, std::int64_t line, const std::string& pointer);

// The pointer of a member or item (RFC 6901: ~0 is ~, ~1 is /). Paths over 200 bytes end in "/...":
// every value carries its pointer, so a long key must not be multiplied by us.
std::string child_pointer(const std::string& parent, std::string_view name);

// The shortest text that reads back as the same double.
std::string exact_text(double number);

// "a, b, c"
std::string joined(const std::vector<std::string>& words);

// Every name of a table.
template <class Table>
std::vector<std::string> words_of(const Table& table) {
  std::vector<std::string> words;
  words.reserve(table.size());
  for (const auto& row : table) { words.emplace_back(row.name); }
  return words;
}

// `; did you mean "h200"?`: the nearest in spelling of the candidates that begin with the word, or
// up to three of them where none is near, else the nearest of all; nothing when none is.
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace shardplan
