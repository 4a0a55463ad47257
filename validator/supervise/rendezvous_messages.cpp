#include "validator/supervise/rendezvous_messages.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;

bool wait_for(int socket, short what, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{.fd = socket, .events = what, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (ready > 0 || (ready == 0 && left <= 0)) {
      return ready > 0;
    }
    if (ready < 0 && errno != EINTR) {
      return false;
    }
  }
}

bool send_all(int socket, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t sent = send(socket, data, size, MSG_NOSIGNAL);
    if (sent <= 0 && errno != EINTR) {
      return false;
    }
    if (sent > 0) {
      data += sent;
      size -= static_cast<std::size_t>(sent);
    }
  }
  return true;
}

bool receive_all(int socket, char* data, std::size_t size, Clock::time_point deadline) {
  while (size > 0) {
    if (!wait_for(socket, POLLIN, deadline)) {
      return false;
    }
    const ssize_t received = recv(socket, data, size, 0);
    if (received == 0 || (received < 0 && errno != EINTR)) {
      return false;
    }
    if (received > 0) {
      data += received;
      size -= static_cast<std::size_t>(received);
    }
  }
  return true;
}

std::string with_length(const std::string& text) {
  std::string framed(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    framed[kLengthBytes - 1 - i] = static_cast<char>(text.size() >> (8 * i));
  }
  return framed + text;
}

}  // namespace

bool send_message(int socket, const std::string& text) {
  const std::string framed = with_length(text);
  return send_all(socket, framed.data(), framed.size());
}

std::uint64_t length_in(const std::string& framed) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length = length << 8 | static_cast<unsigned char>(framed[i]);
  }
  return length;
}

std::optional<std::string> receive_message(int socket, Clock::time_point deadline) {
  std::string text(kLengthBytes, '\0');
  if (!receive_all(socket, text.data(), text.size(), deadline)) {
    return std::nullopt;
  }
  const std::uint64_t size = length_in(text);
  if (size > static_cast<std::uint64_t>(2 * kMaxMessageBytes)) {
    return std::nullopt;
  }
  text.resize(size);
  if (!receive_all(socket, text.data(), text.size(), deadline)) {
    return std::nullopt;
  }
  return text;
}

}  // namespace shardplan
