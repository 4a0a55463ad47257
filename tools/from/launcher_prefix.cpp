#include "tools/from/launcher_prefix.h"

#include <algorithm>
#include <cstddef>

namespace shardplan {
namespace {

constexpr std::string_view kDigits = "0123456789";

std::size_t end_of_digits(std::string_view text, std::size_t begin) {
  return std::min(text.find_first_not_of(kDigits, begin), text.size());
}

// How long "3: " is at the start of the text, behind spaces; 0: it is not there.
std::size_t label_length(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  const std::size_t end = end_of_digits(text, begin);
  return end > begin && text.substr(end).starts_with(": ") ? end + 2 : 0;
}

// The same of a tag with its rank.
std::size_t tag_length(std::string_view text) {
  for (const std::string_view tag : kRankTags) {
    std::size_t end = end_of_digits(text, tag.size());
    if (!text.starts_with(tag) || end == tag.size() || !text.substr(end).starts_with(']')) {
      continue;
    }
    ++end;
    for (const std::string_view stream : {"<stdout>", "<stderr>"}) {
      end += text.substr(end).starts_with(stream) ? stream.size() : 0;
    }
    return text.substr(end).starts_with(':') ? end + 1 : 0;
  }
  return 0;
}

}  // namespace

std::string_view launcher_prefix(std::string_view line) {
  std::size_t end = 0;
  while (true) {
    const std::string_view rest = line.substr(end);
    const std::size_t length = std::max(label_length(rest), tag_length(rest));
    if (length == 0) {
      return line.substr(0, end);
    }
    end += length;
  }
}

}  // namespace shardplan
