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
