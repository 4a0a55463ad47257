#include "tests/tools/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace shardplan {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

std::vector<char*> pointers_of(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) { pointers.push_back(word.data()); }
  pointers.push_back(nullptr);
  return pointers;
}

pid_t spawn(const std::string& program, const std::vector<std::string>& arguments,
            const std::vector<std::string>& variables, const std::string& out,
            const std::string& err) {
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> argv = pointers_of(words);
  std::vector<std::string> all = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) { all.emplace_back(*entry); }
  const std::vector<char*> environment = pointers_of(all);

  constexpr int kCreate = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kCreate, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kCreate, 0600);
  pid_t child = 0;
  const int error =
      posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw std::runtime_error("cannot run " + program);
  }
  return child;
}

}  // namespace

std::string built_program(const std::string& name) {
  return std::string(SHARDPLAN_BINARY_DIR) + "/" + name;
}

ProgramRun run_shardplan(const std::vector<std::string>& arguments) {
  return StartedProgram(built_program("shardplan"), arguments, {}).wait();
}

ProgramRun run_in_full(std::vector<std::string> arguments) {
  constexpr auto kScreens =
      std::to_array<std::string_view>({"estimate", "compare", "search", "advise", "why-oom"});
  const bool has_screen = !arguments.empty() &&
                          std::ranges::find(kScreens, arguments.front()) != kScreens.end() &&
                          std::ranges::find(arguments, "--details") == arguments.end();
  if (has_screen) {
    arguments.insert(arguments.begin() + 1, "--details");
  }
  return run_shardplan(arguments);
}

StartedProgram::StartedProgram(const std::string& program,
                               const std::vector<std::string>& arguments,
                               const std::vector<std::string>& variables)
    : folder_((std::filesystem::temp_directory_path() / "shardplan_run_XXXXXX").string()) {
  if (mkdtemp(folder_.data()) == nullptr) {
    throw std::runtime_error("cannot make " + folder_);
  }
  pid_ = spawn(program, arguments, variables, folder_ + "/out", folder_ + "/err");
}

StartedProgram::~StartedProgram() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string StartedProgram::out_so_far() const {
  return read_file(folder_ + "/out");
}

ProgramRun StartedProgram::wait() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int status = 0;
  rusage usage = {};
  while (wait4(pid_, &status, WNOHANG, &usage) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(pid_, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = 0;
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = read_file(folder_ + "/out"),
          .err = read_file(folder_ + "/err"),
          .cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
          .memory_bytes = std::int64_t{usage.ru_maxrss} * 1024};
}

TemporaryDirectory::TemporaryDirectory()
    : path_((std::filesystem::temp_directory_path() / "shardplan_test_XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) {
    throw std::runtime_error("cannot make " + path_);
  }
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) {
    throw std::runtime_error("cannot write " + path);
  }
}

}  // namespace shardplan
