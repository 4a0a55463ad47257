// Buffers of DeepEP outside PyTorch's allocator.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/plan/job.h"
#include "estimator/plan/plan.h"

namespace shardplan::megatron {

// Numbers of ranks for which DeepEP v1.2.1 has a configuration (deep_ep/buffer.py,
// get_dispatch_config, get_combine_config).
bool deepep_serves(std::int64_t ranks);
// All of them.
std::vector<std::int64_t> deepep_ranks();

// Bytes of the buffer that all layers share, from the first exchange to the end; 0 where no tokens
// are exchanged by DeepEP. deepep (v1.2.1 csrc/config.hpp, deep_ep.cpp, deep_ep/buffer.py; core/
// transformer/moe/fused_a2a.py, get_buffer): slots of tokens in flight, in a channel for every two
// multiprocessors, and a workspace; what crosses nodes lies in NVSHMEM's heap, which grows by
// 512 MiB. hybridep (branch hybrid-ep at 94a9f8f, csrc/hybrid_ep/buffer/intranode.cu,
// internode_doca.cu): all tokens of all ranks, as if one rank had every expert that they choose.
std::int64_t dispatch_buffer_bytes(const Job& job, const Plan& plan);

}  // namespace shardplan::megatron
