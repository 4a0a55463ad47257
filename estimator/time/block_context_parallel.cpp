#include "estimator/time/block_context_parallel.h"

#include <algorithm>
#include <stdexcept>

#include "estimator/plan/number.h"

namespace shardplan {
namespace {

// Width of keys and values of one token on one rank. Fewer kv heads than tp are replicated.
std::int64_t kv_width(const BlockContext& context) {
  const ModelSpec& model = context.model();
  if (model.is_mla()) {
    return div_ceil(model.num_heads, context.plan.tp) *
           (model.mla.qk_head_dim() + model.mla.v_head_dim);
  }
  return div_ceil(model.num_kv_heads, context.plan.tp) * 2 * model.head_dim;
}

// What one token adds to the tensors that an all-to-all over heads exchanges: q, k, v and output.
std::int64_t qkvo_width(const BlockContext& context, const AttentionWork& work) {
  return work.heads * (work.qk_dim + work.v_dim) + kv_width(context);
}

// Bytes per element of queries, and of keys and values.
struct RingKernels {
  Passes query;
  Passes key_value;
};

// PyTorch's ring attention (torch.distributed.tensor.experimental, _context_parallel) merges blocks
// in fp32 by kernels of its own. Forward, per element of queries: every block cast to fp32 6, the
// result back 6; a block that is merged, of all queries or of half of them in turn, difference 12,
// product with a weight of the row 8, difference 12, and for halves cats of 8: 24 on average.
// Backward: zeros 4 and the result back 6; every block's gradient added, 10, or as half with a cat,
// 17; gradients of keys and values, of two elements each, are added, joined and sent in every step.
RingKernels eager_ring_merges(double c) {
  return {.query = {.forward = {.converted = 6 + 6 * (c + 1) / 2 + 24 * (c - 1)},
                    .backward = {.converted = 20 + 17 * (c - 1)}},
          .key_value = {.backward = {.converted = 10 + 22 * c}}};
}

// The same in a compiled layer, whose kernels take several of these steps at once: a block that is
// merged reads the sum so far 4 and itself 2 and writes the sum 4; keys and values are joined 4,
// values made contiguous 2. Backward: the first block's gradient of queries cast and the sum cast
// back, 9 besides what the rotation's kernel does, every further one, half of them in turn, added
// 5; those of keys and values start as zeros 4, are cast 6 and back 4, and in every hop added 8 and
// joined 8.
RingKernels compiled_ring_merges(double c) {
  const double hops = c - 1;
  return {.query = {.forward = {.fused = 10 * hops}, .backward = {.fused = 9 + 5 * hops}},
          .key_value = {.forward = {.fused = 6}, .backward = {.fused = 14 + 16 * hops}}};
}

BlockTime titan_merges(const BlockContext& context, const AttentionWork& work) {
  const double c = number(context.plan.cp);
  const RingKernels kernels =
      context.job.profile.compiles_layers() ? compiled_ring_merges(c) : eager_ring_merges(c);
  BlockTime time =
      memory_bound(context, number(context.tokens * work.heads * work.qk_dim), kernels.query);
  add(time, memory_bound(context, number(context.tokens * kv_width(context)), kernels.key_value));
  return time;
}

// Keys of the two calls of one sequence, on the rank whose chunks lie in the middle: windows are
// cut off at the start of the sequence there least of all.
std::int64_t keys_of_gathered_calls(const BlockContext& context, std::int64_t window) {
  const std::int64_t c = context.plan.cp;
  const std::int64_t chunk = div_ceil(context.job.sequence_length, 2 * c);
  const std::int64_t before = gathered_keys_before(context.job, window);
  return 2 * chunk + std::min(before, (c - 1) * chunk) + std::min(before, c * chunk);
}

// Our trainer (validator/lower/ring.cpp, validator/lower/attention.cpp). Ring: keys and values into
// their buffer 4; the sum of outputs and of query gradients in fp32, into it 6 and out of it 6,
// those of keys and values likewise; a block of a hop has all queries and half of the keys or the
// reverse, three quarters on average, each merged or added with 10. Gathered: own keys and values
// into the gathered tensor 4, their gradients summed from the parts of c ranks 2 c + 2, and zeros
// for them, c times 2; where they are cuDNN's, those of every call are added to it, 6 for each of
// its keys and values.
BlockTime native_merges(const BlockContext& context, const LayerSpec& layer,
                        const AttentionWork& work) {
  const double queries = number(context.tokens * work.heads * work.qk_dim);
  const double keys_values = number(context.tokens * kv_width(context));
  const double c = number(context.plan.cp);
  if (context.plan.cp_method != CpMethod::kRing) {
    BlockTime time =
        memory_bound(context, keys_values,
                     {.forward = {.fused = 4}, .backward = {.fused = 4 + (2 * c + 2) + 2 * c}});
    if (context.plan.cp_method == CpMethod::kAllGather &&
        !attends_on_warpgroups(context.gpu(), context.model().head_dim)) {
      const std::int64_t keys =
          context.plan.micro_batch * keys_of_gathered_calls(context, layer.attention_window);
      add(time,
          memory_bound(context, number(keys * kv_width(context)), {.backward = {.fused = 6}}));
    }
    return time;
  }
  const double of_hops = 7.5 * (c - 1);
  BlockTime time = memory_bound(
      context, queries, {.forward = {.fused = 12 + of_hops}, .backward = {.fused = 12 + of_hops}});
  add(time, memory_bound(context, keys_values,
                         {.forward = {.fused = 4}, .backward = {.fused = 16 + of_hops}}));
  return time;
}

}  // namespace

// Ring (Transformer Engine, p2p): c - 1 hops of k and v; backward carries their gradients along and
// sends them home, our trainer in fp32. All-gather: k and v once, gathered again and their
// gradients reduced in backward. All-to-all (Ulysses): q, k, v before and the output after
// attention.
ContextExchange context_exchange(const BlockContext& context, const AttentionWork& work) {
  const Carrier carrier = carrier_of(context.job, context.cp);
  const double c = number(context.plan.cp);
  const double kv_bytes = number(context.tokens * kv_width(context)) * context.element_bytes;
  const auto cost = [&](Collective collective, double bytes, Carrier by) {
    return collective_cost(context.job.cluster, context.cp, collective, bytes, by);
  };
  switch (context.plan.cp_method) {
    case CpMethod::kRing: {
      const bool is_native = context.job.profile.memory_model == MemoryModel::kNative;
      const double gradient_bytes = is_native ? 4 / context.element_bytes * kv_bytes : kv_bytes;
      const BesideCost hops = (c - 1) * cost(Collective::kSend, kv_bytes, carrier);
      const BesideCost gradients = c * cost(Collective::kSend, gradient_bytes, carrier);
      return {.forward = hops, .backward = hops + gradients, .gradients = gradients};
    }
    case CpMethod::kAllGather: {
      const BesideCost gather = cost(Collective::kAllGather, c * kv_bytes, carrier);
      return {.forward = gather, .backward = 2 * gather};
    }
    case CpMethod::kA2a: {
      const double bytes =
          number(context.tokens * qkvo_width(context, work)) * context.element_bytes;
      const BesideCost exchange = cost(Collective::kAllToAll, bytes, Carrier::kNccl);
      return {.forward = exchange, .backward = exchange};
    }
  }
  throw std::logic_error("context_exchange: unknown method");
}

namespace {

// The last of c hops of gradients, their way home, has nothing beside it. The others hide beside
// attention of `sequences` at once, all hops of keys and values beside all attention.
ForwardBackward visible_ring_s(double cp, const ContextExchange& exchange,
                               const BlockTime& attention, double sequences) {
  const double beside = (cp - 1) / cp;
  const double attention_s = beside * attention.backward_input_s;
  const double share = 1 / sequences;
  return {
      .forward_s = beside_compute_s(exchange.forward, beside * attention.forward_s),
      .backward_s = exchange.gradients.alone_s / cp +
                    beside_compute_s(beside * exchange.gradients + share * exchange.forward,
                                     share * attention_s) +
                    beside_compute_s((1 - share) * exchange.forward, (1 - share) * attention_s)};
}

}  // namespace

ForwardBackward visible_context_parallel_s(const BlockContext& context,
                                           const ContextExchange& exchange,
                                           const BlockTime& attention) {
  const FrameworkProfile& profile = context.job.profile;
  const CpMethod method = context.plan.cp_method;
  const bool gathers_beside =
      method == CpMethod::kAllGather && profile.memory_model == MemoryModel::kNative;
  if (profile.cp_overlap == CpOverlap::kExposed || (method != CpMethod::kRing && !gathers_beside)) {
    return {.forward_s = exchange.forward.alone_s, .backward_s = exchange.backward.alone_s};
  }
  const std::int64_t sequences = context.plan.micro_batch;
  if (method == CpMethod::kRing) {
    return visible_ring_s(number(context.plan.cp), exchange, attention,
                          profile.cp_overlap == CpOverlap::kSequences ? number(sequences) : 1);
  }
  return {.forward_s = in_pieces_s(exchange.forward, attention.forward_s, sequences),
          .backward_s = in_pieces_s(exchange.backward, attention.backward_input_s, sequences)};
}

BlockTime context_parallel_merges(const BlockContext& context, const LayerSpec& layer,
                                  const AttentionWork& work) {
  switch (context.job.profile.memory_model) {
    case MemoryModel::kTorchtitan: return titan_merges(context, work);
    case MemoryModel::kNative: return native_merges(context, layer, work);
    default: return {};
  }
}

bool attends_on_warpgroups(const GpuSpec& gpu, std::int64_t head_dim) {
  return gpu.compute_capability == 90 && (head_dim == 64 || head_dim == 128);
}

std::int64_t gathered_keys_before(const Job& job, std::int64_t window) {
  constexpr std::int64_t kTile = 64;
  return window == 0 ? job.sequence_length : round_up(window - 1, kTile);
}

}  // namespace shardplan
