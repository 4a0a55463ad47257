// Context parallelism of one layer: what travels around attention, what of it stays visible, and
// the kernels that put blocks of keys together.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan {

// Width of keys and values of one token on one rank. Fewer key-value heads than tp are replicated.
std::int64_t key_value_width(const BlockContext& context);

// All that one layer exchanges.
struct ContextExchange {
  BesideCost forward = {};
  BesideCost backward = {};
  BesideCost gradients = {};  // of these backward: the gradients that a ring carries along
};
ContextExchange context_exchange(const BlockContext& context, const AttentionWork& work);

// What stays visible (CpOverlap): hops of a ring run beside attention to the keys of the hop
// before, and the gradients' way home has nothing to hide behind; of keys that are gathered
// sequence by sequence those of one come beside the attention of another.
ForwardBackward visible_context_parallel_s(const BlockContext& context,
                                           const ContextExchange& exchange,
                                           const BlockTime& attention);

// Memory-bound kernels beside attention.
BlockTime context_parallel_merges(const BlockContext& context, const LayerSpec& layer,
                                  const AttentionWork& work);

// Keys in front of a call's queries that it gets of those gathered: all, or as many as the window
// reaches, in tiles of 64.
std::int64_t gathered_keys_before(const Job& job, std::int64_t window);

}  // namespace shardplan
