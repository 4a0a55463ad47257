// How DeepSpeed's ZeRO optimizers reduce gradients, gather parameters and step, on the GPU and on
// the host (runtime/zero/stage_1_and_2.py, stage3.py of 0.19.6).
#pragma once

#include "estimator/time/update_times.h"

namespace shardplan::deepspeed {

extern const UpdateTimes kUpdate;

}  // namespace shardplan::deepspeed
