// The lines of a log, and the message that begins in one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "data/read/text_file.h"

namespace shardplan {

inline constexpr std::string_view kTried = "Tried to allocate ";

// The lines of a log, without colours; some are read before it is their turn.
class LogLines {
 public:
  explicit LogLines(TextFile& log) : log_(log) {}
  bool next(std::string& line);
  std::int64_t number() const { return number_; }  // of the line that came last, from 1
  const std::string* ahead(std::size_t at);
  void skip(std::size_t count);

 private:
  TextFile& log_;
  std::deque<std::string> ahead_;
  std::int64_t number_ = 0;
};

// The line of a message with those behind it: its next sentences, and any pieces that complete it,
// into which a terminal or a logger broke it; each perhaps behind the same prefix again.
std::string whole_message(LogLines& lines, const std::string& first);

}  // namespace shardplan
