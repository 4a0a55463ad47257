#include "validator/supervise/rendezvous_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "validator/supervise/rendezvous.h"
#include "validator/supervise/rendezvous_messages.h"
#include "validator/supervise/rendezvous_request.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAnswer{30000};  // how late the answer of a busy server may be

}  // namespace

RendezvousClient::RendezvousClient(const std::string& address, std::int64_t port,
                                   const std::string& token, Milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const std::string place = address + ":" + std::to_string(port);
  std::string why = "no such address";
  while (socket_ < 0) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) == 0) {
      for (const addrinfo* at = found; at != nullptr && socket_ < 0; at = at->ai_next) {
        const int candidate = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (candidate >= 0 && connect(candidate, at->ai_addr, at->ai_addrlen) == 0) {
          socket_ = candidate;
        } else {
          why = std::strerror(errno);
          close(candidate);
        }
      }
      freeaddrinfo(found);
    }
    if (socket_ < 0 && Clock::now() > deadline) {
      throw RendezvousError(
          std::string("rendezvous: cannot connect to ").append(place).append(": ").append(why));
    }
    if (socket_ < 0) {
      std::this_thread::sleep_for(Milliseconds(20));
    }
  }
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  try {
    ask(token, timeout);
  } catch (const RendezvousError& error) {
    close(socket_);
    throw RendezvousError("rendezvous: " + place + ": " + error.what());
  }
}

RendezvousClient::~RendezvousClient() {
  close(socket_);
}

std::string RendezvousClient::ask(const std::string& request, Milliseconds timeout) {
  // The server keeps the time. One that ends closes the connection; one on a busy host is late.
  const auto deadline = Clock::now() + timeout + kAnswer;
  std::optional<std::string> reply;
  if (send_message(socket_, request)) {
    reply = receive_message(socket_, deadline);
  }
  if (!reply || reply->empty()) {
    throw RendezvousError("rank 0 went away");
  }
  if (reply->front() != '+') {
    throw RendezvousError(reply->substr(1));
  }
  return reply->substr(1);
}

void RendezvousClient::set(const std::string& key, const std::string& value) {
  ask(text_of({.what = 's', .key = key, .value = value}));
}

std::string RendezvousClient::get(const std::string& key, Milliseconds timeout) {
  try {
    return ask(text_of({.what = 'g', .timeout_ms = timeout.count(), .key = key, .value = {}}),
               timeout);
  } catch (const RendezvousError& error) {
    throw RendezvousError("rendezvous: " + key + ": " + error.what());
  }
}

std::optional<std::string> RendezvousClient::get_within(const std::string& key,
                                                        Milliseconds timeout) {
  try {
    return ask(text_of({.what = 'g', .timeout_ms = timeout.count(), .key = key, .value = {}}),
               timeout);
  } catch (const RendezvousError& error) {
    if (error.what() == std::string(kNotInTime)) {
      return std::nullopt;
    }
    throw;
  }
}

void RendezvousClient::erase(const std::string& key) {
  ask(text_of({.what = 'e', .key = key, .value = {}}));
}

bool RendezvousClient::claim(const std::string& key) {
  try {
    ask(text_of({.what = 'c', .key = key, .value = {}}));
    return true;
  } catch (const RendezvousError& error) {
    if (error.what() == std::string(kClaimed)) {
      return false;
    }
    throw;
  }
}

void RendezvousClient::set_when_gone(const std::string& key, const std::string& value) {
  ask(text_of({.what = 'w', .key = key, .value = value}));
}

}  // namespace shardplan
