// How transformers' Trainer reduces gradients, gathers parameters and steps: by PyTorch's
// DistributedDataParallel or FSDP2, with its fused AdamW.
#pragma once

#include "estimator/time/update_times.h"

namespace shardplan::transformers {

extern const UpdateTimes kUpdate;

}  // namespace shardplan::transformers
