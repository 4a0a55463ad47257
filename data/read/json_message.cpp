#include "data/read/json_message.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>

#include "data/read/json_reader.h"

#include <cstddef>

namespace shardplan {

namespace {

constexpr std::size_t kMaxPointerBytes = 200;
constexpr std::size_t kMaxShownBytes = 60;

}  // namespace

std::string shown(std::string_view text, Encoding encoding) {
  std::string out;
  for (const char letter : text.substr(0, kMaxShownBytes)) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool printable =
        byte >= 0x20 && byte != 0x7f && (byte < 0x80 || encoding == Encoding::kUtf8);
    out += printable ? letter : '?';
  }
  if (text.size() <= kMaxShownBytes) {
    return out;
  }
  // Do not end inside a character: drop continuation bytes and their lead byte.
  while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) {
    out.pop_back();
  }
  if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xc0) {
    out.pop_back();
  }
  return out + "...";
}

std::string place(const std::string& file, std::int64_t line, const std::string& pointer) {
  return file + ":" + std::to_string(line) + ": " + (pointer.empty() ? "" : pointer + ": ");
}

std::string child_pointer(const std::string& parent, std::string_view name) {
  const std::string_view cut = "/...";
  if (std::string_view(parent).ends_with(cut)) {
    return parent;
  }
  if (parent.size() + name.size() > kMaxPointerBytes) {
    return parent + std::string(cut);
  }
  std::string pointer;
  pointer.reserve(parent.size() + 1 + name.size());
  pointer.append(parent).append("/");
  const auto is_plain = [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return byte >= 0x20 && byte != 0x7f && letter != '~' && letter != '/';
  };
  while (!name.empty()) {
    const std::size_t plain =
        static_cast<std::size_t>(std::ranges::find_if_not(name, is_plain) - name.begin());
    pointer.append(name.substr(0, plain));
    if (plain == name.size()) {
      break;
    }
    pointer.append(name[plain] == '~' ? "~0" : name[plain] == '/' ? "~1" : "?");
    name.remove_prefix(plain + 1);
  }
  return pointer;
}

std::string exact_text(double number) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return {buffer.data(), result.ptr};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) { text += (text.empty() ? "" : ", ") + word; }
  return text;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLeastLetters = 3;  // fewer begin too many names
  constexpr std::size_t kMostNames = 3;
  std::vector<std::string> begun;
  const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  std::ranges::copy_if(candidates, std::back_inserter(begun), [&](const std::string& name) {
    return letters >= kLeastLetters && name.size() > word.size() && name.starts_with(word);
  });
  const std::string nearest = nearest_name(word, candidates);
  if (begun.empty() || std::ranges::find(begun, nearest) != begun.end()) {
    return nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?";
  }
  std::ranges::stable_sort(begun, {}, &std::string::size);
  begun.resize(std::min(begun.size(), kMostNames));
  std::string names;
  for (const std::string& name : begun) {
    names += (names.empty() ? "\"" : " or \"") + name + "\"";
  }
  return "; did you mean " + names + "?";
}

}  // namespace shardplan
