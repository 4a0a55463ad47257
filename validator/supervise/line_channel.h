// Lines of text over a socket between two processes.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace shardplan {

class LineChannel {
 public:
  explicit LineChannel(int descriptor) : descriptor_(descriptor) {}  // owns it
  ~LineChannel();
  LineChannel(const LineChannel&) = delete;
  LineChannel& operator=(const LineChannel&) = delete;

  // False where the other side has gone, or does not read although its buffer is full.
  bool send(const std::string& line);
  // The next whole line; nothing within the time, or at the end (see is_at_end()).
  std::optional<std::string> receive(std::chrono::milliseconds timeout);
  bool is_at_end() const { return is_at_end_; }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  std::string buffer_;
  bool is_at_end_ = false;
};

}  // namespace shardplan
