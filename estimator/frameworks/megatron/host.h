// What hosts take to launch Megatron-core's layers and CUDA graphs of them, and what Megatron-FSDP,
// interleaved schedules and Muon add.
#pragma once

#include "estimator/time/host_launches.h"

namespace shardplan::megatron {

extern const HostLaunches kHost;       // with Transformer Engine's layers
extern const HostLaunches kLocalHost;  // with the local layer spec
extern const HostLaunches kPaperHost;  // of which Muon alone was measured

// Muon's update of one matrix.
double host_orthogonalize_s(const Job& job);

}  // namespace shardplan::megatron
