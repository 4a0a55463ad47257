// How Megatron-LM reduces gradients, gathers parameters and steps, and what Megatron-FSDP leaves
// visible.
#pragma once

#include "estimator/time/update_times.h"

namespace shardplan::megatron {

extern const UpdateTimes kUpdate;       // with Transformer Engine's layers
extern const UpdateTimes kLocalUpdate;  // with the local layer spec
// Transformer Engine's or Apex' without Megatron-FSDP and weights in fp8, on hosts that were not
// measured: for runs of which only a paper tells.
extern const UpdateTimes kPaperUpdate;

}  // namespace shardplan::megatron
