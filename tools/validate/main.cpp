// shardplan-validate: runs plans. Supervises, and is the worker of a rank on the host; knows
// nothing of CUDA. Ranks on GPUs are shardplan-validate-cuda.
#include "data/read/input_error.h"
#include "tools/commands/run_main.h"
#include "tools/measure/calibrate_memory.h"
#include "tools/validate/validate.h"
#include "tools/validate/workers.h"
#include "validator/host/rank_backend.h"

namespace shardplan {
namespace {

std::unique_ptr<RankBackend> make_host_backend(std::int64_t) {
  return std::make_unique<HostRankBackend>();
}

ExitCode run(Arguments arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  if (!arguments.empty()) {
    arguments.erase(arguments.begin());
  }
  if (name == "worker") {
    return static_cast<ExitCode>(run_worker(arguments, make_host_backend));
  }
  if (name == "validate") {
    return run_validation(arguments);
  }
  if (name == "calibrate") {
    return run_calibration(arguments);
  }
  throw InputError("found '" + name +
                   "', expected validate or calibrate; see 'shardplan help validate'");
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  return shardplan::run_main(argc, argv, shardplan::run);
}
