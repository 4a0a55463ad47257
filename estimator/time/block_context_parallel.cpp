#include "estimator/time/block_context_parallel.h"

#include <algorithm>
#include <stdexcept>

#include "estimator/plan/number.h"

namespace shardplan {
namespace {

// What one token adds to the tensors that an all-to-all over heads exchanges: q, k, v and output.
std::int64_t qkvo_width(const BlockContext& context, const AttentionWork& work) {
  return work.heads * (work.qk_dim + work.v_dim) + key_value_width(context);
}

}  // namespace

std::int64_t key_value_width(const BlockContext& context) {
  const ModelSpec& model = context.model();
  if (model.is_mla()) {
    return div_ceil(model.num_heads, context.plan.tp) *
           (model.mla.qk_head_dim() + model.mla.v_head_dim);
  }
  return div_ceil(model.num_kv_heads, context.plan.tp) * 2 * model.head_dim;
}

// Ring (Transformer Engine, p2p): c - 1 hops of k and v; backward carries their gradients along and
// sends them home. All-gather: k and v once, gathered again and their gradients reduced in
// backward. All-to-all (Ulysses): q, k, v before and the output after attention.
ContextExchange context_exchange(const BlockContext& context, const AttentionWork& work) {
  const Carrier carrier = carrier_of(context.framework.moves_by_copies, context.cp);
  const double c = number(context.plan.cp);
  const double kv_bytes = number(context.tokens * key_value_width(context)) * context.element_bytes;
  const auto cost = [&](Collective collective, double bytes, Carrier by) {
    return collective_cost(context.job.cluster, context.cp, collective, bytes, by);
  };
  const bool in_fp32 = context.framework.sends_gradients_in_fp32;
  const double gradient_bytes = in_fp32 ? 4 / context.element_bytes * kv_bytes : kv_bytes;
  const BesideCost gradients = c * cost(Collective::kSend, gradient_bytes, carrier);
  switch (context.plan.cp_method) {
    case CpMethod::kRing: {
      const BesideCost hops = (c - 1) * cost(Collective::kSend, kv_bytes, carrier);
      return {.forward = hops, .backward = hops + gradients, .gradients = gradients};
    }
    case CpMethod::kAllGather: {
      const BesideCost gather = cost(Collective::kAllGather, c * kv_bytes, carrier);
      return context.framework.attends_in_rounds
                 ? ContextExchange{.forward = gather,
                                   .backward = gather + gradients,
                                   .gradients = gradients}
                 : ContextExchange{.forward = gather, .backward = 2 * gather};
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
  const CpOverlap overlap = context.overlaps.cp;
  const CpMethod method = context.plan.cp_method;
  const bool gathers_beside =
      method == CpMethod::kAllGather && context.framework.attends_by_sequence;
  if (overlap == CpOverlap::kExposed || (method != CpMethod::kRing && !gathers_beside)) {
    return {.forward_s = exchange.forward.alone_s, .backward_s = exchange.backward.alone_s};
  }
  const std::int64_t sequences = context.plan.micro_batch;
  if (method == CpMethod::kRing) {
    return visible_ring_s(number(context.plan.cp), exchange, attention,
                          overlap == CpOverlap::kSequences ? number(sequences) : 1);
  }
  return {.forward_s = in_pieces_s(exchange.forward, attention.forward_s, sequences),
          .backward_s = in_pieces_s(exchange.backward, attention.backward_input_s, sequences)};
}

BlockTime context_parallel_merges(const BlockContext& context, const LayerSpec& layer,
                                  const AttentionWork& work) {
  const auto merges = context.framework.context_parallel_merges;
  return merges != nullptr ? merges(context, layer, work) : BlockTime{};
}

std::int64_t gathered_keys_before(const Job& job, std::int64_t window) {
  constexpr std::int64_t kTile = 64;
  return window == 0 ? job.sequence_length : round_up(window - 1, kTile);
}

}  // namespace shardplan
