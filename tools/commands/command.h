// A command of the program: one row of the table (help.h), one file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

// Exit codes; scripts may rely on them.
enum class ExitCode {
  kOk = 0,
  kNegative = 1,     // a valid question with a negative answer: invalid plan, does not fit
  kInput = 2,        // the user's mistake
  kEnvironment = 3,  // a file that cannot be written, a program that is not there
  kBug = 4,
  kDeadRank = 5,       // validate: a rank that timed out or died
  kInterrupted = 130,  // search: by SIGINT, with the best so far
};

using Arguments = std::vector<std::string>;  // what stands after the command's name

struct Command {
  std::string_view name;
  std::string_view arguments;  // as usage shows them
  std::string_view summary;    // one line
  ExitCode (*run)(const Arguments& arguments);
};

}  // namespace shardplan
