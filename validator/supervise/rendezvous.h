// Where the processes of a run find each other: a key-value store over TCP that rank 0 serves.
// Communicator ids, votes and results pass through it; bulk data never does. A client must know the
// run's token; a stranger is disconnected before it can read or write anything, and many of them
// take neither threads nor descriptors from a run. Unless several hosts take part, only this one
// can connect at all.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

namespace shardplan {

// A peer that went away, a wrong token, or a wait that ran out of time; says which and for what.
class RendezvousError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Reach { kThisHost, kAllHosts };

// Serves until it is destroyed, on threads of its own.
class RendezvousServer {
 public:
  // Port 0: any free one, see port(). Throws RendezvousError where the port is taken,
  // std::system_error where no thread can be started.
  RendezvousServer(std::int64_t port, std::string token, Reach reach = Reach::kThisHost);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  std::int64_t port() const { return port_; }
  // Throws what a thread of the server has met: from then on some client waits in vain.
  void require_serving();

  // For the process that serves: without a wait, and `take` removes what it returns.
  void set(const std::string& key, const std::string& value);
  std::optional<std::string> take(const std::string& key);
  bool has(const std::string& key);
  // All keys that begin so.
  void forget(const std::string& prefix);

 private:
  // A connection that has not said the token yet.
  struct Stranger {
    int socket = -1;
    std::chrono::steady_clock::time_point since = {};
    std::string greeting = {};
  };
  struct Client {
    int socket = -1;
    std::thread thread = {};
    bool has_gone = false;  // its thread takes no lock any more
  };

  // The rest of a thread, or why it ended, for require_serving().
  template <class Body>
  void run_noting_failure(const Body& body);
  void accept_clients();
  void wait_for_news(bool has_place) const;
  int accept_stranger();
  void hear_strangers(std::chrono::milliseconds longest);
  void add_client(int socket);  // under the lock
  void forget_gone_clients();   // under the lock
  void serve(int socket);
  void answer(int socket, const std::string& text, std::map<std::string, std::string>& will);

  std::string token_;
  int listener_ = -1;
  std::int64_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::list<Client> clients_;
  std::list<Stranger> strangers_;  // of the acceptor
  std::exception_ptr failure_;     // the first of a thread
  std::thread acceptor_;
};

}  // namespace shardplan
