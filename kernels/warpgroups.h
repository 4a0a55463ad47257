// The device that the kernels for sm_90a are for.
#pragma once

namespace shardplan {

// Whether it is the current one: those kernels run on no later one either.
bool has_warpgroups();

// Of the current device.
int num_multiprocessors();

}  // namespace shardplan
