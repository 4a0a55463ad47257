// Feed-forward part of a torchtitan layer: its rows.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

void add_titan_ffn(TitanBlock& block);
// Input and statistics of the norm before a feed-forward part or a mixture.
void add_titan_ffn_input(TitanBlock& block);
// bf16 copies of a layer's weights, under autocast.
void add_titan_weight_casts(TitanBlock& block);

}  // namespace shardplan::torchtitan
