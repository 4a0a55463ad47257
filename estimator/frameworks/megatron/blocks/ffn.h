// Feed-forward part of a Megatron layer, dense or of experts: its rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

void add_dense_ffn(MegatronBlock& block);
void add_moe(MegatronBlock& block);

}  // namespace shardplan::megatron
