// A worker that is a child of this process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "validator/supervise/line_channel.h"
#include "validator/supervise/progress.h"
#include "validator/supervise/worker_link.h"

namespace shardplan {

struct WorkerCommand {
  std::vector<std::string> arguments;    // [0] is the path of the program; no shell sees them
  std::vector<std::string> environment;  // NAME=value, instead of or besides this process's own
};

// The child gets a process group of its own, dies when this process dies, however that happens, and
// has descriptors 3 and 4 (see worker.h); its standard output is this process's standard error.
class WorkerProcess : public WorkerLink {
 public:
  explicit WorkerProcess(WorkerCommand command);
  ~WorkerProcess() override;
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  void start() override;
  void send(const std::string& line) override;
  std::optional<std::string> receive() override;
  std::optional<WorkerEnd> end() override;
  bool is_started() const override { return pid_ > 0; }
  Position position() override;
  void set_abort(bool abort) override;
  void kill() override;
  int descriptor() const override;
  pid_t pid() const { return pid_; }

 private:
  WorkerCommand command_;
  int page_descriptor_ = -1;
  ProgressPage* page_ = nullptr;
  std::unique_ptr<LineChannel> control_;
  pid_t pid_ = -1;
  std::optional<WorkerEnd> end_;
};

}  // namespace shardplan
