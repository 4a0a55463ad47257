// A worker as its supervisor sees it, on this host or behind an agent on another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "validator/supervise/progress.h"

namespace shardplan {

// How a process ended: by a signal, or with an exit code.
struct WorkerEnd {
  std::optional<int> signal = std::nullopt;
  int code = 0;

  std::string text() const;  // "killed by signal 9 (Killed)", "ended with exit code 7"
};

class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  // Starts the process, if there is none. It says "ready" when it can serve.
  virtual void start() = 0;
  virtual void send(const std::string& line) = 0;
  // The next line that has arrived; nothing if there is none yet.
  virtual std::optional<std::string> receive() = 0;
  // Set when the process has ended; start() forgets it.
  virtual std::optional<WorkerEnd> end() = 0;
  virtual bool is_started() const = 0;
  virtual Position position() = 0;
  // Whether waits in the worker end; see Progress::must_abort().
  virtual void set_abort(bool abort) = 0;
  // Ends the process and whatever it has started; returns when it is gone.
  virtual void kill() = 0;
  virtual int descriptor() const = 0;  // readable when something may have happened; -1: ask again
};

}  // namespace shardplan
