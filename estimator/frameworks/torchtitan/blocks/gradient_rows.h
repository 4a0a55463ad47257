// Gradients of a torchtitan block's parameters, as they stay behind its backward.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/torchtitan/blocks.h"

namespace shardplan::torchtitan {

// Reduced gradients lie in one tensor a block, others in one a parameter.
void split_gradient(BlockRow& row, const std::vector<std::int64_t>& weights);

// The gradient of a block's parameters as it stays after the block's backward.
BlockRow titan_gradient(const TitanBlock& block, std::int64_t elements, Step born);
BlockRow titan_embedding_gradient(const TitanBlock& block);
BlockRow titan_expert_gradient(const TitanBlock& block);  // of experts that are a group
// Reductions of a layer's gradients beside these: in fp32 where they are not, and those that
// replicas keep.
void add_titan_reductions(TitanBlock& block, BlockKind kind);

}  // namespace shardplan::torchtitan
