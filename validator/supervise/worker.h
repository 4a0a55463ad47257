// A worker: the process of one rank. Lives across plans: waits for a run, runs it, says how it
// went.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "validator/supervise/rank_backend.h"
#include "validator/supervise/run_request.h"

namespace shardplan {

// What every worker's command line ends with; see WorkerProcess.
struct WorkerPlace {
  std::int64_t rank = 0;              // among the workers of the batch
  std::int64_t local_rank = 0;        // among those of this host: its GPU
  std::string address = "127.0.0.1";  // of the rendezvous
  std::int64_t port = 0;
};

// The descriptors that a worker is born with.
inline constexpr int kControlDescriptor = 3;  // lines to and from its supervisor
inline constexpr int kProgressDescriptor = 4;

// The run's token, for workers: the environment of a process is its user's alone, its command line
// is not.
inline constexpr const char* kTokenVariable = "SHARDPLAN_TOKEN";
inline constexpr const char* kFaultVariable = "SHARDPLAN_FAULT";

// Lowers the plan of a request for one rank: program, model and batch; the rest is filled in by the
// caller. Throws for plans that cannot be run.
using PlanReader = std::function<RankTask(const RunRequest& request, std::int64_t rank)>;
using BackendMaker = std::function<std::unique_ptr<RankBackend>(std::int64_t local_rank)>;

// Serves until its supervisor goes away; returns the exit code.
int serve_runs(const WorkerPlace& place, const PlanReader& read_plan,
               const BackendMaker& make_backend);

}  // namespace shardplan
