// What hosts take to launch Megatron-core's layers and CUDA graphs of them, and what Megatron-FSDP,
// interleaved schedules and Muon add.
#pragma once

#include "estimator/time/host_launches.h"

namespace shardplan {

extern const HostLaunches kMegatronHost;       // with Transformer Engine's layers
extern const HostLaunches kMegatronLocalHost;  // with the local layer spec

// Muon's update of one matrix.
double host_orthogonalize_s(const Job& job);

}  // namespace shardplan
