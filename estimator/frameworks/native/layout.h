// How the native trainer lays out a pipeline.
#pragma once

#include "estimator/plan/framework_profile.h"

namespace shardplan::native {

inline constexpr FrameworkLayout kLayout = {.sends_from_buffers = true};

}  // namespace shardplan::native
