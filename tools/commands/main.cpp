// shardplan: the command-line program. Picks the command.
#include <algorithm>
#include <string>

#include "data/read/input_error.h"
#include "tools/commands/help.h"
#include "tools/commands/run_main.h"
#include "tools/options/options.h"

namespace shardplan {
namespace {

bool holds(const Arguments& arguments, const char* word) {
  return std::ranges::find(arguments, word) != arguments.end();
}

// --help, --version and their short forms are understood behind every command.
ExitCode run(Arguments arguments) {
  if (arguments.empty()) {
    throw InputError("no command; see 'shardplan help'",
                     "shardplan estimate --model llama3-8b --cluster 1x8-h100 --sequence-length 8k "
                     "--global-batch 64");
  }
  std::ranges::replace(arguments, "-h", "--help");
  std::ranges::replace(arguments, "-V", "--version");
  if (holds(arguments, "--version")) {
    return run_version({});
  }
  const std::string name = arguments.front() == "--help" ? "help" : arguments.front();
  arguments.erase(arguments.begin());
  const Command& command = command_named(name);
  if (options_of(name).empty() && holds(arguments, "--help")) {
    return run_help({name});
  }
  return command.run(arguments);
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  return shardplan::run_main(argc, argv, shardplan::run);
}
