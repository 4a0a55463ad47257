// Which of DeepSpeed's options lets a step take the least time.
#pragma once

#include "estimator/plan/framework_profile.h"

namespace shardplan::deepspeed {

inline void set_fastest(FrameworkProfile& profile) {
  profile.overlap_comm = OverlapComm::kOn;
}

}  // namespace shardplan::deepspeed
