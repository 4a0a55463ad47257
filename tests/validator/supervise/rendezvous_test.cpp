#include "validator/supervise/rendezvous.h"
#include "tests/few_threads.h"
#include "validator/supervise/rendezvous_client.h"
#include "validator/supervise/rendezvous_request.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <memory>
#include <system_error>
#include <vector>

namespace shardplan {
namespace {

constexpr std::chrono::milliseconds kLong{20000};
constexpr std::chrono::milliseconds kShort{50};

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const RendezvousError& error) { return error.what(); }
  return "";
}

std::atomic<bool> has_ipv6 = true;

}  // namespace

}  // namespace shardplan

// In the place of the C library's: without IPv6 as a kernel that was booted with ipv6.disable=1.
extern "C" int socket(int domain, int type, int protocol) noexcept {
  if (domain == AF_INET6 && !shardplan::has_ipv6) {
    errno = EAFNOSUPPORT;
    return -1;
  }
  return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}

namespace shardplan {

namespace {

void connect_to(std::int64_t port, int socket) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  CHECK(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
}

int connected_to(std::int64_t port) {
  const int own = socket(AF_INET, SOCK_STREAM, 0);
  connect_to(port, own);
  return own;
}

}  // namespace

TEST_CASE("what one process sets, others get, whoever comes first") {
  const RendezvousServer server(0, "secret");
  std::vector<std::thread> threads;
  std::vector<std::string> found(8);
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      RendezvousClient client("127.0.0.1", server.port(), "secret", kLong);
      const std::string own = std::string("value ") + std::to_string(i) + '\0' + "\n end";
      client.set("key " + std::to_string(i), own);
      found[i] = client.get("key " + std::to_string((i + 1) % found.size()), kLong);
    });
  }
  for (std::thread& thread : threads) { thread.join(); }
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i] ==
          std::string("value ") + std::to_string((i + 1) % found.size()) + '\0' + "\n end");
  }
}

TEST_CASE("a request is what its writer writes, and nothing else") {
  const auto request = rendezvous_request_of(
      text_of({.what = 'g', .timeout_ms = 1000, .key = "a key", .value = "a value"}));
  REQUIRE(request);
  CHECK(request->what == 'g');
  CHECK(request->timeout_ms == 1000);
  CHECK(request->key == "a key");
  CHECK(request->value == "a value");
  for (const std::string text :
       {"", "s", "s0", "s0 ", "s0 1", "s0 1 ", "s-1 1 k", "s0 -1 k", "s0 9223372036854775807 k",
        "g9223372036854775807 1 k", "g99999999999999999999 1 k", "s 0 1 k"}) {
    CHECK_MESSAGE(!rendezvous_request_of(text), text);
  }
}

TEST_CASE("a port that is taken is named") {
  const auto first = std::make_unique<RendezvousServer>(0, "t");
  const std::int64_t port = first->port();
  CHECK(message_of([&] {
          RendezvousServer(port, "t");
        }).starts_with("rendezvous: cannot listen on port " + std::to_string(port)));
}

TEST_CASE("a host without IPv6 has a rendezvous, and says why where it has none") {
  has_ipv6 = false;
  for (const Reach reach : {Reach::kThisHost, Reach::kAllHosts}) {
    RendezvousServer server(0, "secret", reach);
    RendezvousClient("127.0.0.1", server.port(), "secret", kLong).set("key", "value");
    CHECK(server.take("key") == "value");
    CHECK(message_of([&] {
            RendezvousServer(server.port(), "secret", reach);
          }).ends_with("Address already in use"));
  }
  has_ipv6 = true;
}

TEST_CASE("the serving process takes what others set, and forgets a run") {
  RendezvousServer server(0, "secret");
  RendezvousClient client("127.0.0.1", server.port(), "secret", kLong);
  CHECK_FALSE(server.take("run 1/a").has_value());
  client.set("run 1/a", "x");
  client.set("run 1/b", "y");
  client.set("run 2/a", "z");
  CHECK(server.take("run 1/a") == "x");
  CHECK_FALSE(server.take("run 1/a").has_value());
  server.forget("run 1/");
  CHECK_FALSE(client.get_within("run 1/b", kShort).has_value());
  CHECK(client.get_within("run 2/a", kShort) == "z");
  client.erase("run 2/a");
  CHECK_FALSE(client.get_within("run 2/a", kShort).has_value());
  server.set("run 3/a", "w");
  CHECK(client.get("run 3/a", kLong) == "w");
}

TEST_CASE("a client that goes away leaves its will") {
  RendezvousServer server(0, "secret");
  RendezvousClient heir("127.0.0.1", server.port(), "secret", kLong);
  {
    RendezvousClient client("127.0.0.1", server.port(), "secret", kLong);
    client.set_when_gone("gone", "it has");
    CHECK_FALSE(heir.get_within("gone", kShort).has_value());
  }
  CHECK(heir.get("gone", kLong) == "it has");
}

TEST_CASE("a server serves more clients, one after another, than it may open descriptors") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 32;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::string failure;
  {
    const RendezvousServer server(0, "secret");
    for (int i = 0; i < 100 && failure.empty(); ++i) {
      failure = message_of([&] { RendezvousClient("127.0.0.1", server.port(), "secret", kShort); });
    }
  }
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(failure == "");
}

TEST_CASE("a thread that the system does not give is what the serving process hears of") {
  const auto thrown = [](const auto& call) {
    try {
      call();
    } catch (const std::system_error& error) { return std::string(error.what()); }
    return std::string();
  };
  const std::string why = ": Resource temporarily unavailable";
  {
    const FewThreads none(0);
    CHECK(thrown([] { RendezvousServer(0, "secret"); }) ==
          "rendezvous: no thread for new clients" + why);
  }
  RendezvousServer server(0, "secret");
  RendezvousClient client("127.0.0.1", server.port(), "secret", kLong);
  CHECK(thrown([&] { server.require_serving(); }) == "");
  const FewThreads none(0);
  CHECK(message_of([&] { RendezvousClient("127.0.0.1", server.port(), "secret", kShort); }) != "");
  std::string heard;
  for (int i = 0; i < 1000 && heard.empty(); ++i) {
    heard = thrown([&] { server.require_serving(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(heard == "rendezvous: no thread for a client" + why);
}

TEST_CASE("strangers who say nothing take no thread and leave room for clients") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  RendezvousServer server(0, "secret");
  std::vector<int> strangers(200);
  for (int& stranger : strangers) { stranger = connected_to(server.port()); }
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(strangers.back()) + 64;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  {
    const FewThreads one(1);
    RendezvousClient client("127.0.0.1", server.port(), "secret", kLong);
    client.set("key", "value");
  }
  CHECK(server.take("key") == "value");
  server.require_serving();
  setrlimit(RLIMIT_NOFILE, &before);
  for (const int stranger : strangers) { close(stranger); }
}

TEST_CASE("a token that comes letter by letter is a token") {
  const RendezvousServer server(0, "secret");
  const int slow = connected_to(server.port());
  for (const char letter : std::string("\0\0\0\0\0\0\0\6secret", 14)) {
    CHECK(send(slow, &letter, 1, 0) == 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  char reply[9] = {};
  CHECK(recv(slow, reply, sizeof(reply), MSG_WAITALL) == sizeof(reply));
  CHECK(reply[8] == '+');
  close(slow);
}

TEST_CASE("a request to wait for years makes no sense, and harms nobody") {
  RendezvousServer server(0, "secret");
  const auto asked = [&](const std::string& request) {
    const int client = connected_to(server.port());
    std::string text = std::string("\0\0\0\0\0\0\0\6secret", 14) + std::string(7, '\0');
    text += static_cast<char>(request.size());
    text += request;
    CHECK(send(client, text.data(), text.size(), 0) == std::ssize(text));
    std::this_thread::sleep_for(kShort);
    server.set("key", "value");
    char reply[9 + 8 + 6] = {};
    CHECK(recv(client, reply, 9, MSG_WAITALL) == 9);
    const ssize_t count = recv(client, reply, sizeof(reply), 0);
    close(client);
    server.forget("key");
    return std::string(reply, static_cast<std::size_t>(count)).substr(8);  // behind its length
  };
  for (const char* milliseconds :
       {"9223372036854775807", "9223372036854", "99999999999999999999", "-9223372036854775808"}) {
    CHECK(asked("g" + std::string(milliseconds) + " 3 key").starts_with("-"));
  }
  CHECK(asked("g31536000000 3 key") == "+value");  // a year
}

TEST_CASE("a server that can accept nobody for longer than strangers may stay says so") {
  RendezvousServer server(0, "secret");
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int own = socket(AF_INET, SOCK_STREAM, 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(own) + 1;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  connect_to(server.port(), own);
  std::string heard;
  const auto begin = std::chrono::steady_clock::now();
  while (heard.empty() && std::chrono::steady_clock::now() - begin < kLong) {
    try {
      server.require_serving();
    } catch (const std::system_error& error) { heard = error.what(); }
    std::this_thread::sleep_for(kShort);
  }
  setrlimit(RLIMIT_NOFILE, &before);
  close(own);
  CHECK(heard == "rendezvous: no client is accepted: Too many open files");
  CHECK(std::chrono::steady_clock::now() - begin > std::chrono::seconds(10));
}

TEST_CASE("of several who claim a key one has it") {
  const RendezvousServer server(0, "secret");
  RendezvousClient one("127.0.0.1", server.port(), "secret", kLong);
  RendezvousClient other("127.0.0.1", server.port(), "secret", kLong);
  CHECK(one.claim("key"));
  CHECK_FALSE(other.claim("key"));
  CHECK_FALSE(one.claim("key"));
  CHECK(other.claim("another"));
}

TEST_CASE("only this host can connect, unless several take part") {
  const RendezvousServer server(0, "secret");
  CHECK(message_of([&] {
          RendezvousClient("::1", server.port(), "secret", kShort);
        }).find("cannot connect") != std::string::npos);
  const RendezvousServer open(0, "secret", Reach::kAllHosts);
  RendezvousClient("127.0.0.1", open.port(), "secret", kLong);
}

TEST_CASE("a token of another length, or a very long one, is refused") {
  const RendezvousServer server(0, "secret");
  for (const std::string& guess :
       {std::string("secretsecret"), std::string("s"), std::string(), std::string(1 << 20, 's')}) {
    CHECK(message_of([&] { RendezvousClient("127.0.0.1", server.port(), guess, kLong); }) != "");
  }
}

TEST_CASE("a wrong token is refused, and the server lives on") {
  const RendezvousServer server(0, "secret");
  CHECK(message_of([&] {
          RendezvousClient("127.0.0.1", server.port(), "guess", kLong);
        }).ends_with(": a wrong token"));
  RendezvousClient client("localhost", server.port(), "secret", kLong);
  client.set("a", "1");
  CHECK(client.get("a", kLong) == "1");
}

TEST_CASE("a wait that runs out says for what") {
  const RendezvousServer server(0, "secret");
  RendezvousClient client("127.0.0.1", server.port(), "secret", kLong);
  CHECK(message_of([&] { client.get("missing", kShort); }) ==
        "rendezvous: missing: nobody has set it in time");
}

TEST_CASE("a server that goes away ends every wait with a message") {
  auto server = std::make_unique<RendezvousServer>(0, "secret");
  RendezvousClient client("127.0.0.1", server->port(), "secret", kLong);
  std::thread end([&] {
    std::this_thread::sleep_for(kShort);
    server.reset();
  });
  CHECK(!message_of([&] { client.get("never", kLong); }).empty());
  end.join();
  CHECK(message_of([&] { client.set("a", "1"); }) == "rank 0 went away");
}

TEST_CASE("a server on a host that has no time for it is late, not gone") {
  int port_pipe[2] = {-1, -1};
  REQUIRE(pipe(port_pipe) == 0);
  const pid_t server = fork();
  if (server == 0) {
    const RendezvousServer of_child(0, "secret");
    const std::int64_t port = of_child.port();
    if (write(port_pipe[1], &port, sizeof(port)) == sizeof(port)) {
      for (;;) { pause(); }
    }
    _exit(1);
  }
  std::int64_t port = 0;
  REQUIRE(read(port_pipe[0], &port, sizeof(port)) == sizeof(port));
  RendezvousClient client("127.0.0.1", port, "secret", kLong);
  kill(server, SIGSTOP);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    kill(server, SIGCONT);
  });
  CHECK(message_of([&] { CHECK_FALSE(client.get_within("missing", kShort).has_value()); }) == "");
  later.join();
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  CHECK(message_of([&] { client.get_within("missing", kShort); }) == "rank 0 went away");
  for (const int end : port_pipe) { close(end); }
}

TEST_CASE("nobody listens: the message names the place") {
  std::int64_t port = 0;
  {
    const RendezvousServer server(0, "t");
    port = server.port();
  }
  CHECK(message_of([&] {
          RendezvousClient("127.0.0.1", port, "t", kShort);
        }).starts_with("rendezvous: cannot connect to 127.0.0.1:" + std::to_string(port)));
}

}  // namespace shardplan
