#include "tools/from/log_lines.h"

#include <algorithm>
#include <array>

#include "tools/from/launcher_prefix.h"
#include "tools/from/log_text.h"

namespace shardplan {
namespace {

// Terminals' colours: ESC [ digits and semicolons m.
void drop_colours(std::string& line) {
  std::size_t start = 0;
  while ((start = line.find("\x1b[", start)) != std::string::npos) {
    const std::size_t end = line.find_first_not_of("0123456789;", start + 2);
    const bool is_colour = end != std::string::npos && line[end] == 'm';
    line.erase(start, is_colour ? end + 1 - start : 1);
  }
}

// The sentences of a message behind its first: some loggers write each on a line of its own.
bool is_sentence(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  if (text.starts_with("GPU ")) {
    const std::size_t end = text.find_first_not_of("0123456789", 4);
    return end != std::string_view::npos && text.substr(end).starts_with(" has ");
  }
  constexpr std::array<std::string_view, 4> kBeginnings = {"Process ", "Including non-PyTorch ",
                                                           "Of the allocated ", "If reserved "};
  return std::ranges::any_of(kBeginnings,
                             [&](std::string_view words) { return text.starts_with(words); });
}

// How wide the logger's prefix of a message is.
std::size_t prefix_width(std::string_view line) {
  std::size_t width = line.find(kTried);
  for (const std::string_view words : {"torch.", "RuntimeError", "CUDA out of memory"}) {
    width = std::min(width, line.find(words));
  }
  return width;
}

// What stands behind the same logger's prefix, or that of the launcher before it, but for digits of
// another time; else the whole line.
std::string_view behind_prefix(std::string_view line, std::string_view prefix) {
  const auto is_same = [](char one, char other) {
    return one == other || (is_digit(one) && is_digit(other));
  };
  for (const std::string_view each : {prefix, launcher_prefix(prefix)}) {
    if (line.size() >= each.size() &&
        std::ranges::equal(each, line.substr(0, each.size()), is_same)) {
      return line.substr(each.size());
    }
  }
  return line;
}

// What a message says last of what is read here: from 2.0 on, 1.4 and later, before.
bool is_whole(std::string_view text) {
  constexpr std::array<std::string_view, 3> kEnds = {"but unallocated", "reserved in total",
                                                     "cached)"};
  const FoundWords tried = find_words(text, kTried);
  return tried && std::ranges::any_of(kEnds, [&](std::string_view words) {
           return static_cast<bool>(find_words(text, words, tried.end));
         });
}

}  // namespace

bool LogLines::next(std::string& line) {
  if (ahead(0) == nullptr) {
    return false;
  }
  line = std::move(ahead_.front());
  skip(1);
  return true;
}

// The lines behind it; nullptr behind the end.
const std::string* LogLines::ahead(std::size_t at) {
  for (std::string line; ahead_.size() <= at && log_.next_line(line);) {
    drop_colours(line);
    ahead_.push_back(std::move(line));
  }
  return at < ahead_.size() ? &ahead_[at] : nullptr;
}

void LogLines::skip(std::size_t count) {
  ahead_.erase(ahead_.begin(), ahead_.begin() + static_cast<std::ptrdiff_t>(count));
  number_ += static_cast<std::int64_t>(count);
}

std::string whole_message(LogLines& lines, const std::string& first) {
  constexpr std::size_t kMostLines = 32;
  constexpr std::string_view kOutOfMemory = "out of memory. ";
  if (!find_words(first, kOutOfMemory) && !find_words(first, kTried)) {
    return first;
  }
  const std::string_view prefix = std::string_view(first).substr(0, prefix_width(first));
  std::string message = first;
  std::string known = first;  // what surely belongs together, and its lines behind the first
  std::size_t num_known = 0;
  for (std::size_t at = 0; at < kMostLines && !is_whole(message); ++at) {
    const std::string* const next = lines.ahead(at);
    const bool has_size = static_cast<bool>(find_words(message, kTried));
    if (next == nullptr || find_words(*next, kOutOfMemory) ||
        (has_size && find_words(*next, kTried))) {
      break;
    }
    const std::string_view piece = behind_prefix(*next, prefix);
    const bool follows = has_size && at == num_known && is_sentence(piece);
    message += piece;
    if (follows || is_whole(message)) {
      known = message;
      num_known = at + 1;
    }
  }
  lines.skip(num_known);
  return known;
}

}  // namespace shardplan
