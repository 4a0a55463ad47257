// Shared experts beside the exchange of the others (--moe-shared-expert-overlap): every layer has a
// stream of its own (core_v0.16.1 core/transformer/moe/shared_experts.py, SharedExpertMLP), whose
// blocks of memory serve no other one once they are free.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::megatron {

bool has_shared_streams(const Job& job);

// PyTorch hands out so many streams in turn (c10/cuda/CUDAStream.cpp, kStreamsPerPool): layers
// beyond them share theirs with earlier ones, blocks of memory and workspaces with it.
inline constexpr std::int64_t kStreamsOfPool = 32;
// Streams of so many layers with experts.
std::int64_t num_shared_streams(std::int64_t mixtures);

// Bytes of one layer on its stream: what it keeps for backward, and what passes at once beside it.
struct SharedStream {
  std::int64_t kept = 0;
  std::int64_t passing = 0;
};
SharedStream shared_stream(const Job& job, const Plan& plan);

// What the caching allocator keeps of the streams of a pipeline rank beyond what is counted as
// allocated: what passes, and of a layer that is computed again what it keeps while that is so.
std::int64_t shared_stream_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank);

}  // namespace shardplan::megatron
