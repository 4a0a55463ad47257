// Final norm, output product and loss of torchtitan: their rows.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

void add_titan_head(TitanBlock& block);

}  // namespace shardplan::torchtitan
