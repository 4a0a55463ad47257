#include "tools/commands/external.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tools/commands/command.h"
#include "tools/report/output.h"

namespace shardplan {
namespace {

constexpr const char* kProgram = "shardplan-validate";

// Replaces this process; returns only if there is no such program.
ExitCode hand_over(const std::string& command, const Arguments& arguments) {
  std::vector<std::string> words = {kProgram, command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) { pointers.push_back(word.data()); }
  pointers.push_back(nullptr);
  std::error_code problem;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", problem);
  if (!problem) {
    execv((self.parent_path() / kProgram).c_str(), pointers.data());
    if (errno != ENOENT) {
      throw EnvironmentError(std::string(kProgram) +
                             ": cannot be started: " + std::strerror(errno));
    }
  }
  execvp(kProgram, pointers.data());
  if (errno != ENOENT) {
    throw EnvironmentError(std::string(kProgram) + ": cannot be started: " + std::strerror(errno));
  }
  throw EnvironmentError(command + ": needs the program " + kProgram +
                         ", which is neither beside this one nor on PATH; to build it: cmake "
                         "--preset release [-DSHARDPLAN_GPU=ON] && cmake --build --preset release");
}

}  // namespace

ExitCode run_validate(const Arguments& arguments) {
  return hand_over("validate", arguments);
}

ExitCode run_calibrate(const Arguments& arguments) {
  return hand_over("calibrate", arguments);
}

}  // namespace shardplan
