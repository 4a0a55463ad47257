// The processes of `validate`: which there are, and the programs that they are.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/commands/command.h"
#include "validator/supervise/launch_environment.h"
#include "validator/supervise/supervisor.h"
#include "validator/supervise/worker.h"

namespace shardplan {

struct WorkerSettings {
  bool on_gpus = true;
  SupervisorOptions supervisor;
  std::optional<LaunchRank> launched;  // by torchrun, srun or mpirun, with other processes
};

// The rank that a launcher has given to this process; nothing where there is none, or where it has
// started this process only. InputError for variables that contradict each other, and where several
// processes have no common token.
std::optional<LaunchRank> launched_rank();

// The rendezvous and the workers around it. Workers start when the first run needs them.
class WorkerPool {
 public:
  // EnvironmentError where there is no worker program or no GPU, or a port is taken.
  explicit WorkerPool(const WorkerSettings& settings);
  Supervisor& supervisor() { return *supervisor_; }

 private:
  std::unique_ptr<RendezvousServer> rendezvous_;
  std::unique_ptr<Supervisor> supervisor_;
};

// Replaces this process by the program for GPUs; returns never. EnvironmentError where there is
// none.
[[noreturn]] void hand_to_cuda_program(const std::string& command, const Arguments& arguments);

// What processes do that a launcher has started beside the one of rank 0.
ExitCode run_as_agent(const WorkerSettings& settings);

// `worker RANK LOCAL_RANK ADDRESS PORT`: the main of every worker.
int run_worker(const Arguments& arguments, const BackendMaker& make_backend);

}  // namespace shardplan
