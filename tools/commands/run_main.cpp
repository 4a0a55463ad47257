#include "tools/commands/run_main.h"

#include <exception>
#include <new>
#include <system_error>

#include "data/read/input_error.h"
#include "tools/report/output.h"

namespace shardplan {
namespace {

ExitCode run_and_catch(const Arguments& arguments, ExitCode (*run)(Arguments)) {
  try {
    return run(arguments);
  } catch (const InputError& problem) {
    print_error(problem.what(), problem.hint);
    return ExitCode::kInput;
  } catch (const EnvironmentError& problem) {
    print_error(problem.what());
    return ExitCode::kEnvironment;
  } catch (const std::system_error& problem) {  // what the system does not give: files, threads
    print_error(problem.what());
    return ExitCode::kEnvironment;
  } catch (const std::bad_alloc&) {
    print_error("out of host memory");
    return ExitCode::kEnvironment;
  } catch (const std::exception& problem) {
    print_error(std::string("internal: ") + problem.what());
    return ExitCode::kBug;
  }
}

}  // namespace

int run_main(int argc, char** argv, ExitCode (*run)(Arguments arguments)) {
  ignore_write_signals();
  const Arguments arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return static_cast<int>(run_and_catch(arguments, run));
}

}  // namespace shardplan
