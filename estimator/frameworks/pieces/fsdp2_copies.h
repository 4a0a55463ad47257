// Copies of PyTorch's FSDP2 around its gathers, in bytes an element
// (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, all_gather_copy_in,
// all_gather_copy_out).
#pragma once

#include "estimator/time/elementwise.h"

namespace shardplan {

// fp32 shards to bf16, into the input of the all-gather, and out of its output into the parameters.
inline constexpr KernelBytes kFsdp2CastShard = {.converted = 6};
inline constexpr KernelBytes kFsdp2ShardToGather = {.converted = 4};
inline constexpr KernelBytes kFsdp2Gathered = {.streamed = 4};

}  // namespace shardplan
