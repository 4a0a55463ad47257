// Embedding of torchtitan.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

// nn.Embedding, sharded by rows under tp: its backward makes the dense gradient of the whole table,
// of which a rank then copies its rows.
void add_titan_embedding(TitanBlock& block);

}  // namespace shardplan::torchtitan
