// shardplan-validate-cuda: the worker of a rank on one GPU, and the microbenchmarks of calibrate.
// Started by shardplan-validate.
#include "data/read/input_error.h"
#include "tools/commands/run_main.h"
#include "tools/measure/calibrate_time.h"
#include "tools/validate/workers.h"
#include "validator/cuda/rank_backend.h"

namespace shardplan {
namespace {

ExitCode run(Arguments arguments) {
  const std::string name = arguments.empty() ? "" : arguments.front();
  if (name != "worker" && name != "calibrate") {
    throw InputError("shardplan-validate-cuda: it is started by shardplan-validate");
  }
  arguments.erase(arguments.begin());
  if (name == "calibrate") {
    return run_time_calibration(arguments);
  }
  return static_cast<ExitCode>(run_worker(arguments, make_cuda_rank_backend));
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  return shardplan::run_main(argc, argv, shardplan::run);
}
