// Attention of a Megatron-core layer under the local spec: its rows.
#pragma once

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// Splitting q out of the packed groups is a view only where each rank has one group, or each group
// one query.
bool copies_query(const BlockShape& s);

void add_local_attention(MegatronBlock& block);

}  // namespace shardplan::megatron
