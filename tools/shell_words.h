// The words of a shell script's commands, with its own variables put in: what a launch script for
// training says without being run. Not a shell: conditions are not evaluated, nothing is executed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace shardplan {

struct ShellCommand {
  std::vector<std::string> words;
  std::int64_t line = 1;  // where it begins
};

using ShellValues = std::map<std::string, std::vector<std::string>>;  // one value, or a list

struct ShellScript {
  std::vector<ShellCommand> commands;               // without assignments
  ShellValues variables;                            // in the end
  std::map<std::string, std::string> exported;      // environment, in the end
  std::map<std::string, std::int64_t> export_line;  // where each was set
  std::vector<std::string> comments;                // lines that begin with #SBATCH
  std::vector<std::string> notes;                   // what was taken with a guess
};

// a * (b + 2) / c with integers and variables; nothing where it is not arithmetic of known ones.
std::optional<std::int64_t> shell_arithmetic(const std::string& text, const ShellValues& values);

ShellScript read_shell(const std::string& text, const std::string& file);

}  // namespace shardplan
