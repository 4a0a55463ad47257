// What experts take besides their products: their choice, and rows on their way to other ranks and
// back.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan {

// What a router takes behind its product: experts chosen, and the auxiliary loss.
BlockTime expert_choice(const BlockContext& context);

// Routing `rows` rows of the hidden width to experts and back.
BlockTime expert_exchange(const BlockContext& context, double rows);

// Rows on their way and back, as much in either direction.
BesideCost exchange_cost(const BlockContext& context, double rows);
// The same by an all-to-all over ep each way, then a gather (and a scatter back) over etp.
BesideCost exchange_of_rows(const BlockContext& context, double rows);

// An exchange of which the profile's share stays visible, of this group, with these kernels around
// it.
BlockTime exposed_exchange(const BlockContext& context, const BlockTime& kernels,
                           const GroupShape& group, const BesideCost& cost);

// What of the exchange noted last stays visible after all.
void note_visible_exchange(const BlockContext& context, const BlockTime& routed);

}  // namespace shardplan
