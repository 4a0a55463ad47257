// shardplan: the command-line program. Picks the command.
#include "data/read/input_error.h"
#include "tools/commands/help.h"
#include "tools/commands/run_main.h"

namespace shardplan {
namespace {

ExitCode run(Arguments arguments) {
  if (arguments.empty()) {
    throw InputError("no command; see 'shardplan help'");
  }
  std::string name = arguments.front();
  arguments.erase(arguments.begin());
  if (name == "--help" || name == "-h") {
    name = "help";
  } else if (name == "--version") {
    name = "version";
  }
  return command_named(name).run(arguments);
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  return shardplan::run_main(argc, argv, shardplan::run);
}
