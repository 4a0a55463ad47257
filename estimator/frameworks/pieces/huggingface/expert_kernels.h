// What runs around the products of experts.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan::huggingface {

BlockTime expert_exchange(const BlockContext& context, double rows);

}  // namespace shardplan::huggingface
