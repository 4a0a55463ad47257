// Context parallelism of one layer: what travels around attention, what of it stays visible, and
// the kernels that put blocks of keys together.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan {

// All that one layer exchanges.
struct ContextExchange {
  BesideCost forward = {};
  BesideCost backward = {};
  BesideCost gradients = {};  // of these backward: the gradients that a ring carries along
};
ContextExchange context_exchange(const BlockContext& context, const AttentionWork& work);

// What stays visible (CpOverlap): hops of a ring run beside attention to the keys of the hop
// before, and the gradients' way home has nothing to hide behind; our trainer gathers keys sequence
// by sequence, one beside attention of another.
ForwardBackward visible_context_parallel_s(const BlockContext& context,
                                           const ContextExchange& exchange,
                                           const BlockTime& attention);

// Memory-bound kernels beside attention, by framework.
BlockTime context_parallel_merges(const BlockContext& context, const LayerSpec& layer,
                                  const AttentionWork& work);

// Whether our own kernels for attention run on warpgroups (kernels/attention/attention.h). If so,
// our trainer leaves backward calls on gathered keys to them: they add up gradients by themselves
// and work on the keys that queries see, where cuDNN does neither (kernels/attention/call.h).
bool attends_on_warpgroups(const GpuSpec& gpu, std::int64_t head_dim);

// Keys in front of a call's queries that our trainer gives it of those it gathered: all, or as many
// as the window reaches, in tiles of 64.
std::int64_t gathered_keys_before(const Job& job, std::int64_t window);

}  // namespace shardplan
