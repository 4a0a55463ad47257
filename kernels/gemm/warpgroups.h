// What the current device has.
#pragma once

namespace shardplan {

// Those of the kernels for sm_90a, which run on no later device either.
bool has_warpgroups();

// Tensor cores for fp8: compute capability 8.9 and later.
bool has_fp8_products();

int num_multiprocessors();

}  // namespace shardplan
