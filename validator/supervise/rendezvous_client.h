// The side of a rendezvous that asks: keys and values over a socket.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace shardplan {

class RendezvousClient {
 public:
  // Tries until the server is there or the time is over. `address` is a name or a number.
  RendezvousClient(const std::string& address, std::int64_t port, const std::string& token,
                   std::chrono::milliseconds timeout);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  void set(const std::string& key, const std::string& value);
  // Waits until somebody has set the key; throws RendezvousError, naming it, after `timeout`.
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  // The same with nothing where the time is over; other failures throw.
  std::optional<std::string> get_within(const std::string& key, std::chrono::milliseconds timeout);
  void erase(const std::string& key);
  // Sets the key unless somebody has done so before; whether it did.
  bool claim(const std::string& key);
  // The server sets the key when this client's connection ends, however that happens.
  void set_when_gone(const std::string& key, const std::string& value);

 private:
  std::string ask(const std::string& request, std::chrono::milliseconds timeout = {});

  int socket_ = -1;
};

}  // namespace shardplan
