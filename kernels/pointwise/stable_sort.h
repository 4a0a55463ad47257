// Stable sort of small keys with the positions they came from, without atomics: the order, and with
// it every sum that follows it, repeats bit for bit. The keys stay on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// Elements of the scratch of stable_sort for `size` keys.
std::int64_t stable_sort_scratch(std::int64_t size);

// sorted_keys [size]  out: ascending
// order       [size]  out: sorted_keys[i] = keys[order[i]]; equal keys keep their order
// scratch     [stable_sort_scratch(size)]
// keys        [size]  from 0 to num_keys - 1; size below 2^31
void stable_sort(std::int32_t* sorted_keys, std::int32_t* order, std::int32_t* scratch,
                 const std::int32_t* keys, std::int64_t size, std::int64_t num_keys,
                 cudaStream_t stream);

}  // namespace shardplan
