// Shared experts beside the exchange of the others (--moe-shared-expert-overlap): every layer has a
// stream of its own (core_v0.16.1 core/transformer/moe/shared_experts.py, SharedExpertMLP), whose
// blocks of memory serve no other one once they are free.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan::megatron {

bool has_shared_streams(const Job& job);

// What the caching allocator keeps of one layer's stream beyond what is counted as allocated.
// `replays`: the layer is computed again in backward, so that it keeps nothing between.
std::int64_t shared_stream_bytes(const Job& job, const Plan& plan, bool replays);

// The same of all mixtures of a pipeline rank.
std::int64_t shared_stream_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank);

}  // namespace shardplan::megatron
