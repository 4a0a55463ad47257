// Words, sizes and numbers in the text of a log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardplan {

// A size as a message prints it: any number of bytes from low to high prints like this.
struct PrintedBytes {
  std::string text;  // "2.00 GiB"
  std::int64_t low = 0;
  std::int64_t high = 0;

  std::int64_t middle() const { return low + (high - low) / 2; }
  bool covers(std::int64_t bytes) const { return low <= bytes && bytes <= high; }
};

// Where words stand in a text, whatever spaces stand in either: lines that were broken to fit a
// terminal lack some.
struct FoundWords {
  std::size_t begin = std::string_view::npos;
  std::size_t end = 0;
  explicit operator bool() const { return begin != std::string_view::npos; }
};

bool is_digit(char letter);
FoundWords find_words(std::string_view text, std::string_view words, std::size_t from = 0);

// "2.00 GiB" at the start of the text, behind spaces.
std::optional<PrintedBytes> next_size(std::string_view text);

std::optional<PrintedBytes> size_after(std::string_view text, std::string_view words);

// "2.00 GiB" right before the words.
std::optional<PrintedBytes> size_before(std::string_view text, std::string_view words);

// Behind spaces.
std::optional<std::int64_t> next_integer(std::string_view text);

std::optional<std::int64_t> integer_after(std::string_view text, std::string_view words);

// Of a launcher's prefix. The last one before the message counts.
std::optional<std::int64_t> rank_in(std::string_view before);

// As messages print sizes: "512 bytes", "20.00 MiB", "1.95 GiB" (format_size).
std::string printed_bytes(std::int64_t bytes);

}  // namespace shardplan
