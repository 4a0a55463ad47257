#include "validator/supervise/worker_process.h"

#include <doctest/doctest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace shardplan {
namespace {

const WorkerCommand kSleeps = {.arguments = {"/bin/sleep", "60"}, .environment = {}};

}  // namespace

TEST_CASE(
    "the end of a worker is seen although whoever started this process ignores its children") {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // it would wait for ever
    std::signal(SIGCHLD, SIG_IGN);
    WorkerProcess worker(kSleeps);
    worker.start();
    worker.kill();
    const std::optional<WorkerEnd> end = worker.end();
    _exit(end && end->signal == SIGKILL ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE(
    "signals that a launcher sends to all processes leave the end of a worker to its keeper") {
  WorkerProcess worker(kSleeps);
  worker.start();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it is another program by now
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) { kill(worker.pid(), signal); }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_FALSE(worker.end().has_value());
}

TEST_CASE("a worker stands still where a signal or a debugger has stopped it") {
  WorkerProcess worker(kSleeps);
  worker.start();
  CHECK_FALSE(worker.position().is_stopped);
  const auto wait_for_stop = [&] {
    int status = 0;
    CHECK(waitpid(worker.pid(), &status, WUNTRACED) == worker.pid());
    CHECK(WIFSTOPPED(status));
  };
  kill(worker.pid(), SIGSTOP);
  wait_for_stop();
  CHECK(worker.position().is_stopped);
  kill(worker.pid(), SIGCONT);
  if (ptrace(PTRACE_ATTACH, worker.pid(), nullptr, nullptr) != 0) {
    MESSAGE("no process may trace another here");
    return;
  }
  wait_for_stop();
  CHECK(worker.position().is_stopped);
  ptrace(PTRACE_DETACH, worker.pid(), nullptr, nullptr);
}

}  // namespace shardplan
