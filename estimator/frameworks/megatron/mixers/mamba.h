// Mamba-2 in the place of a Megatron layer's attention (nemotron_h).
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// Tokens whose scan is one product, whatever the model was trained with (MambaMixer, chunk_size).
inline constexpr std::int64_t kMambaChunk = 128;

void add_mamba(MegatronBlock& block);

}  // namespace shardplan::megatron
