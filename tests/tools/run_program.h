// Runs the built `shardplan` as a user would, for tests of what it prints and how it exits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

struct ProgramRun {
  int exit_code = 0;  // 128 + signal if it was killed
  std::string out;
  std::string err;
  double cpu_s = 0;               // user and system
  std::int64_t memory_bytes = 0;  // largest resident size
};

// stdin is empty; `arguments` do not pass through a shell. Killed after 60 s.
ProgramRun run_shardplan(const std::vector<std::string>& arguments);

// The same with all of an answer's text, where the command has more than a screen of it.
ProgramRun run_in_full(std::vector<std::string> arguments);

// Any program by its path, with variables NAME=value besides this process's own.
class StartedProgram {
 public:
  StartedProgram(const std::string& program, const std::vector<std::string>& arguments,
                 const std::vector<std::string>& variables);
  ~StartedProgram();  // kills it, if it still runs
  StartedProgram(const StartedProgram&) = delete;
  StartedProgram& operator=(const StartedProgram&) = delete;

  int pid() const { return pid_; }
  ProgramRun wait();  // killed after 60 s
  std::string out_so_far() const;

 private:
  std::string folder_;
  int pid_ = 0;
};
std::string built_program(const std::string& name);  // its path

// A directory of its own, removed with everything in it at the end of the scope.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

}  // namespace shardplan
