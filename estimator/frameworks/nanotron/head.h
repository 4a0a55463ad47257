// Final norm, logits, their cast and the loss of nanotron, in one block or on different ranks.
#pragma once

#include "estimator/frameworks/nanotron/block.h"

namespace shardplan::nanotron {

// Logits in the activation's type, their cast and the loss.
void add_head(NanotronBlock& b);

void add_logits(NanotronBlock& b);
void add_cast(NanotronBlock& b);
void add_loss(NanotronBlock& b);

}  // namespace shardplan::nanotron
