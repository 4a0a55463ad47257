// Where a rank is: a page of memory that its process writes and the supervisor reads, also after
// the process has died.
#pragma once

#include <atomic>
#include <cstdint>

#include "validator/program/program.h"
#include "validator/supervise/fault.h"
#include "validator/supervise/outcome.h"

namespace shardplan {

// Lies in memory shared between processes: lock-free atomics only, zero at first.
struct ProgressPage {
  std::atomic<std::int64_t> beats;      // grows with whatever happens; standing still is hanging
  std::atomic<std::int64_t> phase;      // RunPhase
  std::atomic<std::int64_t> step;       // of kSteps, from 0, warm-up steps included
  std::atomic<std::int64_t> operation;  // 1 + the operation that the host is at; 0: none
  // 1 + the operation that a stream is at, written by the device itself; 0: idle, or not known.
  // What names the operation when the host has launched a whole step or a graph and waits.
  std::atomic<std::int64_t> device_operation[kNumStreams];
  std::atomic<std::int64_t> waiting;  // 1: for what another rank has to set in the run's store
  std::atomic<std::int64_t> abort;    // set by the supervisor: whoever waits gives up
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
inline constexpr std::int64_t kProgressBytes = 4096;  // of the mapping: a whole page
static_assert(sizeof(ProgressPage) <= kProgressBytes);

// Where a rank is, or was when last seen.
struct Position {
  std::int64_t beats = 0;
  RunPhase phase = RunPhase::kIdle;
  std::int64_t step = 0;
  std::int64_t operation =
      -1;  // that its device is at, where that is known, else its host; -1: none
  bool is_waiting = false;
  bool is_stopped = false;  // by a signal or a debugger: it cannot move
};
inline Position position_of(const ProgressPage& page) {
  std::int64_t on_device = 0;
  for (const std::atomic<std::int64_t>& stream : page.device_operation) {
    const std::int64_t at = stream;
    on_device = at > 0 && (on_device == 0 || at < on_device) ? at : on_device;
  }
  return {.beats = page.beats,
          .phase = static_cast<RunPhase>(page.phase.load()),
          .step = page.step,
          .operation = (on_device > 0 ? on_device : page.operation.load()) - 1,
          .is_waiting = page.waiting != 0};
}

// What a backend calls while it runs. A backend that wants the device to write device_operation
// registers the page (cudaHostRegister of page(), whole memory pages) and grows beats when it sees
// them change.
class Progress {
 public:
  // A fault of tests strikes where the position is its own; `fault` may be nullptr.
  explicit Progress(ProgressPage& page, const Fault* fault = nullptr)
      : page_(page), fault_(fault) {}

  void enter(RunPhase phase) {
    page_.phase = static_cast<std::int64_t>(phase);
    page_.operation = 0;
    beat();
    strike();
  }
  void begin_step(std::int64_t step) {
    page_.step = step;
    page_.operation = 0;
    beat();
  }
  // Before the operation is run, or launched.
  void at(std::int64_t operation) {
    page_.operation = operation + 1;
    beat();
    strike();
  }
  void beat() { ++page_.beats; }
  // Another rank has failed, or the time is over: throw a RunFailure that is an echo. To be polled
  // wherever something waits for other ranks.
  bool must_abort() const { return page_.abort != 0; }

  RunPhase phase() const { return static_cast<RunPhase>(page_.phase.load()); }
  ProgressPage& page() const { return page_; }

 private:
  void strike() {
    if (fault_ != nullptr) {
      strike_if_due(*fault_, phase(), page_.step, page_.operation - 1);
    }
  }

  ProgressPage& page_;
  const Fault* fault_;
};

}  // namespace shardplan
