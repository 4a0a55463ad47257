// The commands of the program: one row each, one file each.
#pragma once

#include <span>
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
  kDeadRank = 5,  // validate: a rank that timed out or died
};

using Arguments = std::vector<std::string>;  // what stands after the command's name

struct Command {
  std::string_view name;
  std::string_view arguments;  // as usage shows them
  std::string_view summary;    // one line
  ExitCode (*run)(const Arguments& arguments);
};

std::span<const Command> commands();

// InputError with a did-you-mean for names that no row has.
const Command& command_named(const std::string& name);

ExitCode run_estimate(const Arguments& arguments);
ExitCode run_compare(const Arguments& arguments);
ExitCode run_search(const Arguments& arguments);
ExitCode run_batch(const Arguments& arguments);
ExitCode run_advise(const Arguments& arguments);
ExitCode run_accuracy(const Arguments& arguments);
ExitCode run_why_oom(const Arguments& arguments);
ExitCode run_list(const Arguments& arguments);
ExitCode run_validate(const Arguments& arguments);   // handed to shardplan-validate
ExitCode run_calibrate(const Arguments& arguments);  // handed to shardplan-validate
ExitCode run_version(const Arguments& arguments);
ExitCode run_help(const Arguments& arguments);

// What `shardplan help COMMAND` prints.
std::string help_text(const Command& command);

}  // namespace shardplan
