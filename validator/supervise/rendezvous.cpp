#include "validator/supervise/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "validator/supervise/rendezvous_messages.h"
#include "validator/supervise/rendezvous_request.h"

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr const char* kNonsense = "-a request that makes no sense";

// How long a stranger may take to say the token, and how long where others wait for its place.
constexpr Milliseconds kGreeting{10000};
constexpr Milliseconds kShortGreeting{1000};

constexpr std::chrono::hours kLongest{24 * 365};  // that anything waits

Clock::time_point never() {
  return Clock::now() + kLongest;
}

// Whether the socket listens there; `address` then has the port that it got.
template <class Address>
bool listens(int listener, Address& address) {
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  socklen_t size = sizeof(address);
  return bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
         listen(listener, SOMAXCONN) == 0 &&
         getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
}

// The port that the socket listens on; -1 where it cannot.
std::int64_t listen_on_both(int listener, std::int64_t port, Reach reach) {
  const int off = 0;
  setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));  // IPv4 as well
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  if (reach == Reach::kThisHost) {
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &address.sin6_addr);
  }
  address.sin6_port = htons(static_cast<std::uint16_t>(port));
  return listens(listener, address) ? ntohs(address.sin6_port) : -1;
}

// The same where the kernel has no IPv6.
std::int64_t listen_on_ipv4(int listener, std::int64_t port, Reach reach) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(reach == Reach::kThisHost ? INADDR_LOOPBACK : INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return listens(listener, address) ? ntohs(address.sin_port) : -1;
}

std::thread started(const std::string& what, const std::function<void()>& body) {
  try {
    return std::thread(body);
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(), "rendezvous: no thread for " + what);
  }
}

constexpr std::size_t kMaxTokenBytes = 256;  // what a stranger may send

// At once: a part of the descriptors that this process may open.
std::size_t most_strangers() {
  constexpr rlim_t kMost = 256;
  constexpr rlim_t kPart = 8;
  rlimit descriptors = {};
  const bool is_known = getrlimit(RLIMIT_NOFILE, &descriptors) == 0;
  return std::clamp<rlim_t>(is_known ? descriptors.rlim_cur / kPart : kMost, 1, kMost);
}

// What is still to come of a stranger's greeting; nothing where that is too long for a token.
std::optional<std::size_t> bytes_to_come(const std::string& greeting) {
  if (greeting.size() < kLengthBytes) {
    return kLengthBytes - greeting.size();
  }
  const std::uint64_t length = length_in(greeting);
  if (length > kMaxTokenBytes) {
    return std::nullopt;
  }
  return kLengthBytes + length - greeting.size();
}

// Adds what is there. Nothing where no more will come.
std::optional<std::size_t> hear(int socket, std::string& greeting) {
  for (;;) {
    const std::optional<std::size_t> left = bytes_to_come(greeting);
    if (left.value_or(0) == 0) {
      return left;
    }
    std::array<char, kMaxTokenBytes> bytes{};
    const ssize_t count = recv(socket, bytes.data(), std::min(*left, bytes.size()), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      return left;
    }
    if (count <= 0) {
      return std::nullopt;
    }
    greeting.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

// Takes as long for a guess that begins well as for any other.
bool is_equal(const std::string& guess, const std::string& token) {
  unsigned difference = guess.size() == token.size() ? 0 : 1;
  for (std::size_t i = 0; i < guess.size(); ++i) {
    difference |=
        static_cast<unsigned>(guess[i] ^ token[i % std::max<std::size_t>(1, token.size())]);
  }
  return difference == 0;
}

}  // namespace

RendezvousServer::RendezvousServer(std::int64_t port, std::string token, Reach reach)
    : token_(std::move(token)) {
  constexpr int kListening = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  listener_ = socket(AF_INET6, kListening, 0);
  const bool has_ipv6 = listener_ >= 0 || errno != EAFNOSUPPORT;
  if (!has_ipv6) {
    listener_ = socket(AF_INET, kListening, 0);
  }
  port_ = listener_ < 0 ? -1
          : has_ipv6    ? listen_on_both(listener_, port, reach)
                        : listen_on_ipv4(listener_, port, reach);
  if (port_ < 0) {
    const std::string why = std::strerror(errno);
    close(listener_);
    throw RendezvousError("rendezvous: cannot listen on port " + std::to_string(port) + ": " + why);
  }
  try {
    acceptor_ =
        started("new clients", [this] { run_noting_failure([this] { accept_clients(); }); });
  } catch (...) {
    close(listener_);
    throw;
  }
}

RendezvousServer::~RendezvousServer() {
  stopping_ = true;
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();  // no client is added any more
  {
    const std::lock_guard lock(mutex_);
    for (const Client& client : clients_) { shutdown(client.socket, SHUT_RDWR); }
    changed_.notify_all();
  }
  for (Client& client : clients_) {
    client.thread.join();
    close(client.socket);
  }
  for (const Stranger& stranger : strangers_) { close(stranger.socket); }
  close(listener_);
}

void RendezvousServer::require_serving() {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

template <class Body>
void RendezvousServer::run_noting_failure(const Body& body) {
  try {
    body();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = failure_ ? failure_ : std::current_exception();
  }
}

// A stranger costs no thread, and all of them few descriptors: none can end a run.
void RendezvousServer::accept_clients() {
  constexpr Milliseconds kPatience = kGreeting + Milliseconds(5000);  // of descriptors
  std::optional<Clock::time_point> short_since;
  while (!stopping_) {
    const bool is_full = strangers_.size() >= most_strangers();
    wait_for_news(!is_full && !short_since);
    const int error = is_full ? 0 : accept_stranger();
    const bool is_short = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
    hear_strangers(is_full || is_short ? kShortGreeting : kGreeting);
    short_since = is_short ? std::optional(short_since.value_or(Clock::now())) : std::nullopt;
    if (short_since && Clock::now() - *short_since > kPatience) {
      throw std::system_error(error, std::generic_category(), "rendezvous: no client is accepted");
    }
  }
}

// From a stranger, or, if a new one has a place, from the listener.
void RendezvousServer::wait_for_news(bool has_place) const {
  constexpr int kLookMs = 100;
  std::vector<pollfd> entries;
  for (const Stranger& stranger : strangers_) {
    entries.push_back({.fd = stranger.socket, .events = POLLIN, .revents = 0});
  }
  const bool can_wait = has_place && entries.empty();  // until somebody comes, or it stops
  if (has_place) {
    entries.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
  }
  poll(entries.data(), entries.size(), can_wait ? -1 : kLookMs);
}

// If there is one; the system's reason where it gives none.
int RendezvousServer::accept_stranger() {
  const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) {
    return errno;
  }
  strangers_.push_back({.socket = socket, .since = Clock::now()});
  return 0;
}

// Those who have said the token become clients; those who said another or took too long go.
void RendezvousServer::hear_strangers(Milliseconds longest) {
  const std::lock_guard lock(mutex_);
  forget_gone_clients();
  for (auto at = strangers_.begin(); at != strangers_.end();) {
    const std::optional<std::size_t> left = hear(at->socket, at->greeting);
    if (left.value_or(0) > 0 && Clock::now() - at->since < longest) {
      ++at;
      continue;
    }
    const Stranger stranger = *at;
    at = strangers_.erase(at);
    if (left == 0 && is_equal(stranger.greeting.substr(kLengthBytes), token_)) {
      add_client(stranger.socket);
    } else {
      send_message(stranger.socket, "-a wrong token");
      close(stranger.socket);
    }
  }
}

void RendezvousServer::add_client(int socket) {
  Client& client = clients_.emplace_back();
  client.socket = socket;
  try {
    client.thread = started("a client", [this, &client] {
      run_noting_failure([this, socket = client.socket] { serve(socket); });
      const std::lock_guard lock(mutex_);
      client.has_gone = true;
    });
  } catch (...) {
    close(socket);
    clients_.pop_back();
    throw;
  }
}

void RendezvousServer::forget_gone_clients() {
  std::erase_if(clients_, [](Client& client) {
    if (client.has_gone) {
      client.thread.join();
      close(client.socket);
    }
    return client.has_gone;
  });
}

void RendezvousServer::serve(int socket) {
  send_message(socket, "+");
  std::map<std::string, std::string> will;
  while (const std::optional<std::string> request = receive_message(socket, never())) {
    answer(socket, *request, will);
  }
  for (const auto& [key, value] : will) { set(key, value); }
}

void RendezvousServer::answer(int socket, const std::string& text,
                              std::map<std::string, std::string>& will) {
  const std::optional<RendezvousRequest> request = rendezvous_request_of(text);
  if (!request) {
    send_message(socket, kNonsense);
    return;
  }
  std::unique_lock lock(mutex_);
  const Milliseconds timeout(request->timeout_ms);
  const auto wait = [&](const auto& is_there) {
    return changed_.wait_for(lock, timeout, [&] { return stopping_ || is_there(); }) && !stopping_;
  };
  std::string reply = "+";
  if (request->what == 's') {
    values_[request->key] = request->value;
    changed_.notify_all();
  } else if (request->what == 'w') {
    will[request->key] = request->value;
  } else if (request->what == 'e') {
    values_.erase(request->key);
  } else if (request->what == 'c') {
    if (!values_.try_emplace(request->key).second) {
      reply = std::string("-").append(kClaimed);
    }
  } else if (request->what == 'g') {
    reply = wait([&] { return values_.contains(request->key); }) ? "+" + values_.at(request->key)
                                                                 : "-" + std::string(kNotInTime);
  } else {
    reply = kNonsense;
  }
  lock.unlock();
  send_message(socket, reply);
}

void RendezvousServer::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::optional<std::string> RendezvousServer::take(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return std::nullopt;
  }
  std::string value = std::move(found->second);
  values_.erase(found);
  return value;
}

bool RendezvousServer::has(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return values_.contains(key);
}

void RendezvousServer::forget(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  std::erase_if(values_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

}  // namespace shardplan
