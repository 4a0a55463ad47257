// Runs one rank after another's plan on one GPU of this process: the CUDA side of RankBackend.
//
// Memory is accounted for by what the driver says before and after each step of the preparation:
//   context        what the process had taken once its CUDA context existed
//   growth         what earlier plans of this process have left
//   arenas         exactly the program's
//   libraries      handles, modules, streams, the kernels of a step, each run once
//   communicators  creating each, and its first call of every kind
//   unattributed   what is left of device_used after the last step
// A memory limit is a reservation of the rest: what the plan sees free is what a smaller device
// would have, and the reservation is not counted.
#pragma once

#include <cstdint>
#include <memory>

#include "validator/supervise/rank_backend.h"

namespace shardplan {

std::unique_ptr<RankBackend> make_cuda_rank_backend(std::int64_t local_rank);

}  // namespace shardplan
