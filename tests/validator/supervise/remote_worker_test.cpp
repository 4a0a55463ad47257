#include "validator/supervise/remote_worker.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace shardplan {
namespace {

constexpr std::chrono::seconds kConnect{20};
constexpr std::int64_t kRank = 2;

// A worker of which nobody asks anything but its start and its end.
class IdleWorker : public WorkerLink {
 public:
  void start() override { is_started_ = true; }
  void send(const std::string& /*line*/) override {}
  std::optional<std::string> receive() override { return std::nullopt; }
  std::optional<WorkerEnd> end() override {
    return is_started_ ? std::nullopt : std::optional<WorkerEnd>(WorkerEnd{});
  }
  bool is_started() const override { return is_started_; }
  Position position() override { return {}; }
  void set_abort(bool /*abort*/) override {}
  void kill() override { is_started_ = false; }
  int descriptor() const override { return -1; }

 private:
  bool is_started_ = false;
};

// What `rank 0` does of a batch that ends before it has begun.
void start_and_end(std::unique_ptr<RemoteWorker> worker) {
  worker->start();
  worker->kill();
}

}  // namespace

TEST_CASE("a batch that ends waits for an agent that has its rank and has said nothing yet") {
  auto server = std::make_unique<RendezvousServer>(0, "secret");
  RendezvousClient client("127.0.0.1", server->port(), "secret", kConnect);
  REQUIRE(claim_rank(client, kRank));
  std::string failure;
  std::thread agent([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // its worker's start, say
    try {
      IdleWorker worker;
      serve_as_agent(client, kRank, worker, StopFlags());
    } catch (const RendezvousError& error) { failure = error.what(); }
  });
  start_and_end(std::make_unique<RemoteWorker>(*server, kRank));
  server.reset();
  agent.join();
  CHECK(failure == "");
}

TEST_CASE("it does not wait for an agent that took its rank and went away") {
  RendezvousServer server(0, "secret");
  {
    RendezvousClient client("127.0.0.1", server.port(), "secret", kConnect);
    REQUIRE(claim_rank(client, kRank));
  }
  RemoteWorker worker(server, kRank);
  worker.start();
  while (!worker.end()) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  CHECK(worker.end()->code == -1);
  CHECK_FALSE(worker.is_started());
}

}  // namespace shardplan
