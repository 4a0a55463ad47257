// shardplan-validate-cuda: the worker of a rank on one GPU. Started by shardplan-validate.
#include "data/input_error.h"
#include "tools/run_main.h"
#include "tools/validate_workers.h"
#include "validator/cuda_rank_backend.h"

namespace shardplan {
namespace {

ExitCode run(Arguments arguments) {
  if (arguments.empty() || arguments.front() != "worker") {
    throw InputError("shardplan-validate-cuda: it is started by shardplan-validate");
  }
  arguments.erase(arguments.begin());
  return static_cast<ExitCode>(run_worker(arguments, make_cuda_rank_backend));
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  return shardplan::run_main(argc, argv, shardplan::run);
}
