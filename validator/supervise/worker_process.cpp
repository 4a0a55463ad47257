#include "validator/supervise/worker_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>

#include "validator/supervise/worker.h"

namespace shardplan {
namespace {

struct Descriptor {
  explicit Descriptor(int open_number) : number(open_number) {}
  ~Descriptor() { close(number); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  const int number;
};

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), "worker: " + what);
}

std::vector<char*> pointers_of(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) { pointers.push_back(word.data()); }
  pointers.push_back(nullptr);
  return pointers;
}

// This process's environment with some variables replaced or added.
std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  std::vector<std::string> variables = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool is_changed = false;
    for (const std::string& change : changes) {
      is_changed = is_changed || std::string_view(change).starts_with(name);
    }
    if (!is_changed) {
      variables.emplace_back(text);
    }
  }
  return variables;
}

// Runs between fork and exec, where other threads may have held any lock: system calls only.
[[noreturn]] void become_worker(pid_t parent, int control, int page, char* const* arguments,
                                char* const* environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(1);  // it died before the line above
  }
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Launchers signal every process of theirs; what that means for a run its supervisor says.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) { ::signal(signal, SIG_IGN); }
  ::signal(SIGPIPE, SIG_DFL);
  dup2(control, kControlDescriptor);
  dup2(page, kProgressDescriptor);
  close(0);
  [[maybe_unused]] const int nothing = open("/dev/null", O_RDONLY);  // in the place of 0
  dup2(2, 1);
  execve(arguments[0], arguments, environment);
  constexpr char kMessage[] = "worker: cannot be executed\n";
  [[maybe_unused]] const ssize_t written = write(2, kMessage, sizeof(kMessage) - 1);
  _exit(127);
}

// A descriptor as the child takes it over, on none of the numbers that are others' there.
int copy_for_child(int descriptor) {
  constexpr int kBeyond = 10;
  const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, kBeyond);
  if (copy < 0) {
    fail("no descriptors");
  }
  return copy;
}

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) {
    return false;
  }
  const char state = text[name_end + 2];
  return state == 'T' || state == 't';  // by a signal; by a debugger
}

}  // namespace

std::string WorkerEnd::text() const {
  if (code < 0) {
    return "ended with the process that kept it";
  }
  return signal ? "killed by signal " + std::to_string(*signal) + " (" + strsignal(*signal) + ")"
                : "ended with exit code " + std::to_string(code);
}

WorkerProcess::WorkerProcess(WorkerCommand command) : command_(std::move(command)) {
  page_descriptor_ = memfd_create("shardplan-progress", MFD_CLOEXEC);
  if (page_descriptor_ < 0 || ftruncate(page_descriptor_, kProgressBytes) != 0) {
    fail("no shared memory");
  }
  void* page =
      mmap(nullptr, kProgressBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_descriptor_, 0);
  if (page == MAP_FAILED) {
    fail("no shared memory");
  }
  page_ = static_cast<ProgressPage*>(page);
}

WorkerProcess::~WorkerProcess() {
  kill();
  munmap(page_, kProgressBytes);
  close(page_descriptor_);
}

void WorkerProcess::start() {
  if (pid_ > 0) {
    return;
  }
  std::memset(static_cast<void*>(page_), 0, kProgressBytes);
  end_.reset();
  int sockets[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    fail("no socket pair");
  }
  control_ = std::make_unique<LineChannel>(sockets[0]);
  const Descriptor other_end(sockets[1]);
  std::vector<std::string> environment = environment_with(command_.environment);
  const std::vector<char*> arguments = pointers_of(command_.arguments);
  const std::vector<char*> variables = pointers_of(environment);
  const Descriptor control(copy_for_child(other_end.number));
  const Descriptor page(copy_for_child(page_descriptor_));
  const pid_t parent = getpid();
  // Who ignores its children hands that on, and the kernel then tells nobody how one ended.
  ::signal(SIGCHLD, SIG_DFL);
  const pid_t child = fork();
  if (child == 0) {
    become_worker(parent, control.number, page.number, arguments.data(), variables.data());
  }
  if (child < 0) {
    fail("cannot be started");
  }
  setpgid(child, child);  // whoever of the two comes first
  pid_ = child;
}

void WorkerProcess::send(const std::string& line) {
  if (control_) {
    control_->send(line);  // of a worker that has gone, end() tells
  }
}

std::optional<std::string> WorkerProcess::receive() {
  return control_ ? control_->receive(std::chrono::milliseconds(0)) : std::nullopt;
}

std::optional<WorkerEnd> WorkerProcess::end() {
  siginfo_t info = {};
  if (pid_ > 0 && waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    ::kill(-pid_, SIGKILL);  // whatever it has started itself, while the group's number is its own
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    end_ = WIFSIGNALED(status) ? WorkerEnd{.signal = WTERMSIG(status)}
                               : WorkerEnd{.code = WEXITSTATUS(status)};
  }
  return end_;
}

Position WorkerProcess::position() {
  Position position = position_of(*page_);
  position.is_stopped = pid_ > 0 && is_stopped(pid_);
  return position;
}

void WorkerProcess::set_abort(bool abort) {
  page_->abort = abort ? 1 : 0;
}

void WorkerProcess::kill() {
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);  // should it have no group yet
    while (!end()) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
  }
}

int WorkerProcess::descriptor() const {
  return control_ && !control_->is_at_end() && pid_ > 0 ? control_->descriptor() : -1;
}

}  // namespace shardplan
