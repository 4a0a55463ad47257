// Every number counts how often one element is read or written; e is its size.
#include "estimator/frameworks/megatron/adapters/kernels.h"

#include <cmath>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/shared_streams.h"
#include "estimator/plan/expert_loads.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_work.h"
#include "estimator/time/collective_time.h"

namespace shardplan::megatron {
namespace {

// Rows of tokens that A's and B's products take, and the layer's input and output have.
struct Rows {
  std::int64_t a = 0;
  std::int64_t b = 0;
};

// mcore-bridge f020e47 src/mcore_bridge/tuners/lora.py, LoraParallelLinear.forward. Dropout reads
// and writes its input and a mask; the scale B's output, the sum both outputs; backward the scale
// its gradient, dropout the input's, and the sum of both gradients of the input.
BlockTime around(const BlockContext& context, const AdapterShape& shape, const Rows& rows) {
  const double e = context.element_bytes;
  const double dropped = context.job.adapters.dropout > 0 ? 2 * e + 1 : 0;
  const double count = number(shape.count);
  BlockTime time =
      memory_bound(context, count * number(rows.a * shape.inputs),
                   {.forward = {.fused = dropped}, .backward = {.fused = dropped + 3 * e}});
  add(time, memory_bound(context, count * number(rows.b * shape.outputs),
                         {.forward = {.fused = 2 * e + 3 * e}, .backward = {.fused = 2 * e}}));
  return time;
}

BlockTime products(const BlockContext& frozen, const AdapterShape& shape, const Rows& rows) {
  BlockContext context = frozen;
  context.trains_weights = true;
  const std::int64_t rank = context.job.adapters.rank;
  const Precision precision = context.plan.precision;
  BlockTime time =
      linear(context, {.m = rows.a, .n = rank, .k = shape.inputs, .count = shape.count}, precision);
  add(time, linear(context, {.m = rows.b, .n = shape.outputs, .k = rank, .count = shape.count},
                   precision));
  add(time, around(frozen, shape, rows));
  return time;
}

// A column-parallel B gathers A's output along the sequence, again backward, where it divides the
// gradient; a row-parallel A divides its output and gathers that one's gradient. Without sequence
// parallelism either sums one way.
BlockTime collectives(const BlockContext& context, bool is_column, bool divides_sequence) {
  if (context.plan.tp == 1) {
    return {};
  }
  const ClusterSpec& cluster = context.job.cluster;
  const double bytes = number(context.tokens * context.job.adapters.rank) * context.element_bytes;
  ForwardBackward all;
  if (divides_sequence) {
    const double gather_s = all_gather_s(cluster, context.tp, bytes);
    const double scatter_s = reduce_scatter_s(cluster, context.tp, bytes);
    all = is_column ? ForwardBackward{.forward_s = gather_s, .backward_s = gather_s + scatter_s}
                    : ForwardBackward{.forward_s = scatter_s, .backward_s = gather_s};
  } else {
    const double sum_s = all_reduce_s(cluster, context.tp, bytes);
    all = is_column ? ForwardBackward{.backward_s = sum_s} : ForwardBackward{.forward_s = sum_s};
  }
  return tensor_parallel(context, all, all);
}

BlockTime of_layer(const BlockContext& context, const AdapterShape& shape, bool is_column) {
  const Rows rows = {.a = is_column ? context.sharded_tokens : context.tokens,
                     .b = is_column ? context.tokens : context.sharded_tokens};
  BlockTime time = products(context, shape, rows);
  add(time, collectives(context, is_column, context.plan.sequence_parallel));
  return time;
}

// All tokens before and behind it.
BlockTime on_all_tokens(const BlockContext& context, const AdapterShape& shape) {
  return products(context, shape, {.a = context.tokens, .b = context.tokens});
}

// A delta net gathers the sequence for its layers, whose adapters sum over ranks.
BlockTime of_mixer(const BlockContext& context, const LayerSpec& layer, const AdapterShape& shape) {
  const bool is_column = shape.place != AdapterPlace::kMixerOutput;
  if (!gathers_in_front(context.job, context.plan, layer)) {
    return of_layer(context, shape, is_column);
  }
  BlockTime time = on_all_tokens(context, shape);
  add(time, collectives(context, is_column, /*divides_sequence=*/false));
  return time;
}

// Shared experts on a stream of their own leave collectives of A and B out.
BlockTime of_shared(const BlockContext& context, const AdapterShape& shape) {
  return has_shared_streams(context.job)
             ? on_all_tokens(context, shape)
             : of_layer(context, shape, shape.place == AdapterPlace::kSharedFc1);
}

// Each expert has as many rows as its products (time/block_layer.cpp).
BlockTime of_experts(const BlockContext& context, const AdapterShape& shape) {
  const double received = fullest_load(context.job, context.plan) *
                          number(context.sharded_tokens * context.model().moe.topk);
  const auto each = static_cast<std::int64_t>(std::ceil(received / number(shape.count)));
  return products(context, shape, {.a = each, .b = each});
}

}  // namespace

void add_adapters_beside_products(const BlockContext& context, const LayerSpec& layer,
                                  LayerParts& parts) {
  for (const AdapterShape& shape : adapters_of(context.job, context.plan, layer)) {
    switch (shape.place) {
      case AdapterPlace::kQkv:
      case AdapterPlace::kProjection:
        begin_part(context, "projections");
        add(parts.projections, of_layer(context, shape, shape.place == AdapterPlace::kQkv));
        break;
      case AdapterPlace::kFc1:
      case AdapterPlace::kFc2:
        begin_part(context, "ffn");
        add(parts.ffn, of_layer(context, shape, shape.place == AdapterPlace::kFc1));
        break;
      case AdapterPlace::kExpertsFc1:
      case AdapterPlace::kExpertsFc2:
        begin_part(context, "experts");
        add(parts.routed, of_experts(context, shape));
        break;
      case AdapterPlace::kSharedFc1:
      case AdapterPlace::kSharedFc2:
        begin_part(context, "shared experts");
        add(parts.shared, of_shared(context, shape));
        break;
      case AdapterPlace::kMixerInput:
      case AdapterPlace::kMixerSteps:
      case AdapterPlace::kMixerOutput:
        begin_part(context, "projections");
        add(parts.projections, of_mixer(context, layer, shape));
        break;
      case AdapterPlace::kQueryUp:
      case AdapterPlace::kKeyValueUp:
        begin_part(context, "projections");
        add(parts.projections, of_layer(context, shape, /*is_column=*/true));
        break;
      case AdapterPlace::kQueryDown:
      case AdapterPlace::kKeyValueDown:
        begin_part(context, "projections");
        add(parts.projections,
            products(context, shape, {.a = context.sharded_tokens, .b = context.sharded_tokens}));
        break;
      case AdapterPlace::kPrediction: break;  // of no layer
    }
  }
}

}  // namespace shardplan::megatron
