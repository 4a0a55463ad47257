// The attention of GPT-OSS's layers.
#pragma once

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

void add_titan_sink_attention(TitanBlock& block);

}  // namespace shardplan::torchtitan
