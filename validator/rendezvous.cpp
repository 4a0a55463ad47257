#include "validator/rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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

namespace shardplan {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A message: eight bytes of length in network order, then the text. Requests begin with a letter;
// s: set, g: get, e: erase, c: claim, w: will. The answer begins with '+' or, with the reason, '-'.
constexpr std::size_t kLengthBytes = 8;

constexpr std::string_view kNotInTime = "nobody has set it in time";
constexpr std::string_view kClaimed = "claimed";
constexpr const char* kNonsense = "-a request that makes no sense";
constexpr Milliseconds kAnswer{30000};  // how late the answer of a busy server may be
constexpr std::chrono::seconds kGreeting{10};

bool wait_for(int socket, short what, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()).count();
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

bool send_message(int socket, const std::string& text) {
  const std::string framed = with_length(text);
  return send_all(socket, framed.data(), framed.size());
}

// Nothing where the peer went away, the time is over, or the length is absurd.
std::optional<std::string> receive_message(int socket, Clock::time_point deadline,
                                           std::int64_t most_bytes = 2 * kMaxMessageBytes) {
  std::array<unsigned char, kLengthBytes> length = {};
  if (!receive_all(socket, reinterpret_cast<char*>(length.data()), length.size(), deadline)) {
    return std::nullopt;
  }
  std::uint64_t size = 0;
  for (const unsigned char byte : length) { size = size << 8 | byte; }
  if (size > static_cast<std::uint64_t>(most_bytes)) {
    return std::nullopt;
  }
  std::string text(size, '\0');
  if (!receive_all(socket, text.data(), text.size(), deadline)) {
    return std::nullopt;
  }
  return text;
}

// "<letter><milliseconds> <bytes of the key> <key><value>"
struct Request {
  char what = 0;
  long long timeout_ms = 0;
  std::string key;
  std::string value;
};

std::string text_of(const Request& request) {
  return request.what + std::to_string(request.timeout_ms) + " " +
         std::to_string(request.key.size()) + " " + request.key + request.value;
}

std::optional<Request> parsed(const std::string& text) {
  Request request;
  long long key_bytes = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%c%lld %lld%n", &request.what, &request.timeout_ms, &key_bytes,
                  &used) != 3) {
    return std::nullopt;
  }
  const std::size_t begin = static_cast<std::size_t>(used) + 1;
  if (key_bytes < 0 || begin + static_cast<std::size_t>(key_bytes) > text.size()) {
    return std::nullopt;
  }
  request.key = text.substr(begin, static_cast<std::size_t>(key_bytes));
  request.value = text.substr(begin + static_cast<std::size_t>(key_bytes));
  return request;
}

Clock::time_point never() {
  return Clock::now() + std::chrono::hours(24 * 365);
}

std::string reason() {
  return std::strerror(errno);
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

constexpr std::int64_t kMaxTokenBytes = 256;  // what a stranger may send

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
  listener_ = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has_ipv6 = listener_ >= 0 || errno != EAFNOSUPPORT;
  if (!has_ipv6) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  port_ = listener_ < 0 ? -1
          : has_ipv6    ? listen_on_both(listener_, port, reach)
                        : listen_on_ipv4(listener_, port, reach);
  if (port_ < 0) {
    const std::string why = reason();
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

void RendezvousServer::accept_clients() {
  constexpr Milliseconds kRetry{10};
  constexpr std::chrono::seconds kPatience = kGreeting + std::chrono::seconds(5);  // of strangers
  std::optional<Clock::time_point> short_since;                                    // of descriptors
  while (!stopping_) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int error = errno;
    {
      const std::lock_guard lock(mutex_);
      forget_gone_clients();
      if (socket >= 0) {
        add_client(socket);
      }
    }
    const bool is_short = socket < 0 && (error == EMFILE || error == ENFILE || error == ENOMEM);
    short_since = is_short ? std::optional(short_since.value_or(Clock::now())) : std::nullopt;
    if (short_since && Clock::now() - *short_since > kPatience) {
      throw std::system_error(error, std::generic_category(), "rendezvous: no client is accepted");
    }
    if (socket < 0) {  // for now, or the client has gone already
      std::this_thread::sleep_for(kRetry);
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
  const std::optional<std::string> greeting =
      receive_message(socket, Clock::now() + kGreeting, kMaxTokenBytes);
  if (greeting && is_equal(*greeting, token_)) {
    send_message(socket, "+");
    std::map<std::string, std::string> will;
    while (const std::optional<std::string> request = receive_message(socket, never())) {
      answer(socket, *request, will);
    }
    for (const auto& [key, value] : will) { set(key, value); }
  } else {
    send_message(socket, "-a wrong token");
    shutdown(socket, SHUT_RDWR);
  }
}

void RendezvousServer::answer(int socket, const std::string& text,
                              std::map<std::string, std::string>& will) {
  const std::optional<Request> request = parsed(text);
  if (!request) {
    send_message(socket, kNonsense);
    return;
  }
  std::unique_lock lock(mutex_);
  const auto wait = [&](const auto& is_there) {
    return changed_.wait_for(lock, Milliseconds(request->timeout_ms), [&] {
      return stopping_ || is_there();
    }) && !stopping_;
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
          why = reason();
          close(candidate);
        }
      }
      freeaddrinfo(found);
    }
    if (socket_ < 0 && Clock::now() > deadline) {
      throw RendezvousError("rendezvous: cannot connect to " + place + ": " + why);
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
