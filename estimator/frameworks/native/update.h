// How our own trainer reduces gradients, gathers parameters and updates them
// (validator/lower/sharding.cpp).
#pragma once

#include "estimator/time/update_times.h"

namespace shardplan::native {

extern const UpdateTimes kUpdate;

}  // namespace shardplan::native
