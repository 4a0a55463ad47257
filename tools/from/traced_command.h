// The command that starts a training, as a shell prints it under `set -x`:
// "+ torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file llama3_8b.toml".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

// Lines of a log, one after the other.
class TracedCommand {
 public:
  void read(const std::string& line, std::int64_t number);

  // The last command with the variables that were set before it, on the line where the log has it;
  // "" where there is none.
  std::string script() const;
  std::int64_t line() const { return line_; }

 private:
  std::vector<std::string> variables_;
  std::string command_;
  std::int64_t line_ = 0;
};

}  // namespace shardplan
