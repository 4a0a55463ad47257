// shardplan: the command-line program. Picks the command and turns mistakes into exit codes; the
// only place that catches (besides a line of batch or accuracy).
#include <csignal>
#include <exception>
#include <new>

#include "data/input_error.h"
#include "tools/command.h"
#include "tools/output.h"

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

ExitCode run_and_catch(const Arguments& arguments) {
  try {
    return run(arguments);
  } catch (const InputError& problem) {
    print_message(problem.what());
    return ExitCode::kInput;
  } catch (const EnvironmentError& problem) {
    print_message(problem.what());
    return ExitCode::kEnvironment;
  } catch (const std::bad_alloc&) {
    print_message("out of host memory");
    return ExitCode::kEnvironment;
  } catch (const std::exception& problem) {
    print_message(std::string("internal error: ") + problem.what());
    return ExitCode::kBug;
  }
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is seen where it is written to
  const shardplan::Arguments arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return static_cast<int>(shardplan::run_and_catch(arguments));
}
