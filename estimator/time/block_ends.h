// The ends of a model: embedding, head with the loss, multi-token prediction.
#pragma once

#include <vector>

#include "estimator/time/block_work.h"

namespace shardplan {

BlockTime embedding_time(const BlockContext& context);
BlockTime head_time(const BlockContext& context);

// The same in three: final norm and head product; the cast of logits; the loss.
BlockTime logits_time(const BlockContext& context);
BlockTime cast_time(const BlockContext& context);
BlockTime loss_time(const BlockContext& context);

// One module: a projection, one layer like `layer`, and the head once more.
BlockTime mtp_time(const BlockContext& context, const BlockTime& layer, const BlockTime& head);

// Elements of these tensors on one rank.
LocalParameters local_sum(const Job& job, const Plan& plan,
                          const std::vector<ParameterTensor>& tensors);

}  // namespace shardplan
