// Mamba-2 in the place of a Megatron layer's attention (nemotron_h).
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// Tokens whose scan is one product, whatever the model was trained with (MambaMixer, chunk_size).
inline constexpr std::int64_t kMambaChunk = 128;

// Groups that one rank of a context-parallel group scans: its part of a tensor-parallel rank's, or
// a copy of one that it shares with others (core/ssm/mamba_context_parallel.py, __init__).
std::int64_t scanned_groups(const Job& job, const Plan& plan);

void add_mamba(MegatronBlock& block);

}  // namespace shardplan::megatron
