// Runs plans on workers and turns whatever happens to them into an outcome. Never touches CUDA.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "validator/supervise/rendezvous.h"
#include "validator/supervise/run_request.h"
#include "validator/supervise/stop_flags.h"
#include "validator/supervise/stuck_rank.h"
#include "validator/supervise/worker_link.h"

namespace shardplan {

struct RunOutcome {
  RunStatus status = RunStatus::kOk;
  std::string reason = {};  // why not ok; one line
  // Of the rank that failed first, or holds up the others. -1: ok, or none in particular.
  std::int64_t rank = -1;
  RunPhase phase = RunPhase::kIdle;
  std::int64_t step = -1;                    // -1: not in a step
  std::int64_t operation = -1;               // of its program
  std::optional<int> signal = std::nullopt;  // kCrash
  std::optional<std::int64_t> requested_bytes = std::nullopt;
  std::optional<std::int64_t> free_bytes = std::nullopt;
  std::optional<double> needed_factor = std::nullopt;
  std::vector<RankResult> ranks = {};    // by rank, if ok; of a simulated run the only one
  std::vector<Position> positions = {};  // of every rank when it failed
  std::int64_t restarted = 0;            // workers that were ended and are started anew
  // False where a process was not there to begin with: this says nothing about the plan.
  bool has_begun = true;
};

struct SupervisorOptions {
  // A run in which no rank has moved for so long is stuck.
  std::chrono::milliseconds timeout{120000};
  // How long the others may take to stop when one has failed, before they are killed.
  std::chrono::milliseconds grace{5000};
};

class Supervisor {
 public:
  // Workers by rank. `rendezvous` is where they meet; it must outlive this.
  Supervisor(std::vector<std::unique_ptr<WorkerLink>> workers, RendezvousServer& rendezvous,
             SupervisorOptions options);

  std::int64_t num_workers() const { return std::ssize(workers_); }
  // Workers that are not there are started; afterwards every worker either waits for the next run
  // or is gone. `program_of` is asked only for runs that stand still. Ends early, as a crash
  // without a rank, when `stop` says now; agents add what their own signals ask for. Throws what
  // has ended the rendezvous.
  RunOutcome run(const RunRequest& request, const ProgramOf& program_of, StopFlags& stop);

 private:
  struct Rank;

  bool wait_until_ready(std::vector<Rank>& ranks, StopFlags& stop);
  void watch(std::vector<Rank>& ranks, const ProgramOf& program_of, StopFlags& stop);
  void read_lines(Rank& rank, std::int64_t run);
  void note_end(Rank& rank);
  void settle(std::vector<Rank>& ranks, std::chrono::milliseconds grace);
  void wait_a_little(const std::vector<Rank>& ranks);
  RunOutcome outcome_of(const std::vector<Rank>& ranks) const;

  std::vector<std::unique_ptr<WorkerLink>> workers_;
  RendezvousServer& rendezvous_;
  SupervisorOptions options_;
  std::int64_t num_runs_ = 0;
};

}  // namespace shardplan
