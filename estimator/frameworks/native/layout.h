// How the native trainer lays out a pipeline.
#pragma once

#include "estimator/plan/framework_profile.h"

namespace shardplan {

inline constexpr FrameworkLayout kNativeLayout = {.sends_from_buffers = true};

}  // namespace shardplan
