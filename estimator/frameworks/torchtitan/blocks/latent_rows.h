// Multi-head latent attention of a torchtitan layer: its rows.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

void add_titan_latent_attention(TitanBlock& block);

}  // namespace shardplan::torchtitan
