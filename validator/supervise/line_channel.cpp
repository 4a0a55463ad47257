#include "validator/supervise/line_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = 64 << 20;  // of a line: more is no message of ours
constexpr std::chrono::seconds kSendTime{10};

bool wait_for(int descriptor, short what, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = descriptor, .events = what, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (ready >= 0 || errno != EINTR) {
      return ready > 0;
    }
  }
}

}  // namespace

LineChannel::~LineChannel() {
  close(descriptor_);
}

bool LineChannel::send(const std::string& line) {
  const std::string text = line + "\n";
  const Clock::time_point deadline = Clock::now() + kSendTime;
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t some =
        ::send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some > 0) {
      sent += static_cast<std::size_t>(some);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(descriptor_, POLLOUT, deadline)) {
        return false;
      }
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::optional<std::string> LineChannel::receive(std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (is_at_end_ || !wait_for(descriptor_, POLLIN, deadline)) {
      return std::nullopt;
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      buffer_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    const bool is_again = count < 0 && (errno == EAGAIN || errno == EINTR);
    is_at_end_ = (count <= 0 && !is_again) || buffer_.size() > kMostBytes;
  }
}

}  // namespace shardplan
