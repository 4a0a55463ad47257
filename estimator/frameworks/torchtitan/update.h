// How FSDP2 gathers parameters and reduces gradients (torch.distributed.fsdp,
// _fsdp_collectives.py), and what torchtitan's optimizer moves.
#pragma once

#include "estimator/time/update_times.h"

namespace shardplan::torchtitan {

extern const UpdateTimes kUpdate;

}  // namespace shardplan::torchtitan
