// GPUs of one process that address each other's memory.
#pragma once

#include <cstdint>
#include <vector>

namespace shardplan {

// Whether each of these devices can address the others' memory. Throws CudaError.
bool reach_each_other(const std::vector<std::int64_t>& devices);

// From now on the current device addresses the memory of this one as its own. Throws CudaError.
void enable_access(std::int64_t device);

}  // namespace shardplan
