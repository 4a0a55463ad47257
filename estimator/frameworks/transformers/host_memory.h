// Host memory of a rank for saved tensors that are offloaded.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::transformers {

// The most bytes of saved tensors on the host at once, in page-locked memory, whose blocks are
// powers of two (PyTorch aten/src/ATen/core/CachingHostAllocator.h, allocate); inputs of layers
// that a checkpoint hosts lie in pageable memory as they are. Counted, not measured.
std::int64_t host_bytes(const Job& job, const Plan& plan);

}  // namespace shardplan::transformers
