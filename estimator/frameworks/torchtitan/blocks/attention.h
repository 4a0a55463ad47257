// Attention of a torchtitan layer: its rows.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

void add_titan_attention(TitanBlock& block, BlockKind kind);

}  // namespace shardplan::torchtitan
