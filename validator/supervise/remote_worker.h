// Workers that other processes of a launcher start: torchrun, srun or mpirun has started one
// process of the batch for every rank, maybe on several hosts. That of rank 0 supervises; each of
// the others is an agent, which keeps one worker for it. They talk through the rendezvous.
#pragma once

#include <string>
#include <vector>

#include "validator/supervise/rendezvous.h"
#include "validator/supervise/rendezvous_client.h"
#include "validator/supervise/stop_flags.h"
#include "validator/supervise/worker_link.h"

namespace shardplan {

// The supervisor's side.
class RemoteWorker : public WorkerLink {
 public:
  RemoteWorker(RendezvousServer& rendezvous, std::int64_t rank);
  ~RemoteWorker() override;
  RemoteWorker(const RemoteWorker&) = delete;
  RemoteWorker& operator=(const RemoteWorker&) = delete;

  void start() override;
  void send(const std::string& line) override;
  std::optional<std::string> receive() override;
  std::optional<WorkerEnd> end() override;
  bool is_started() const override { return is_started_; }
  Position position() override;
  void set_abort(bool abort) override;
  void kill() override;
  int descriptor() const override { return -1; }

 private:
  void tell(const std::string& what, const std::string& value);
  void listen();

  RendezvousServer& rendezvous_;
  std::string key_;
  std::int64_t num_told_ = 0;
  std::int64_t num_heard_ = 0;
  bool is_started_ = false;
  bool is_gone_ = false;  // the agent
  std::vector<std::string> lines_;
  Position position_;
  std::optional<WorkerEnd> end_;
};

// Before an agent serves its rank: false where another process of the batch has it already. From
// then on the supervisor's side knows of the agent, and of its end.
bool claim_rank(RendezvousClient& rendezvous, std::int64_t rank);

// The agent of one rank: serves until the supervisor says that the batch is over; where that goes
// away, throws RendezvousError. `worker` is this process's child; what signals have asked for in
// `stop` is the supervisor's to decide.
void serve_as_agent(RendezvousClient& rendezvous, std::int64_t rank, WorkerLink& worker,
                    const StopFlags& stop);

}  // namespace shardplan
