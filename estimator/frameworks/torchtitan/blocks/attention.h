// Attention of a torchtitan layer: its rows.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

void add_titan_attention(TitanBlock& block, BlockKind kind);
// Behind rows of its own of a layer's attention. `is_received`: the gradient of its output lies in
// a buffer until something is added to it.
void add_titan_attention_ends(TitanBlock& block, bool is_received);

}  // namespace shardplan::torchtitan
