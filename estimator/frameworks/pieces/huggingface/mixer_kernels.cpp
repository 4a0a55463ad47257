// Every number counts bytes of one element that kernels read and write, one kernel an operator, in
// the order of torch_chunk_gated_delta_rule; fp32 between products in bf16.
#include "estimator/frameworks/pieces/huggingface/mixer_kernels.h"

#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/plan/units.h"
#include "estimator/time/block_replay.h"

namespace shardplan::huggingface {
namespace {

constexpr double kChunk = 64;  // tokens

// Of each element of keys as wide as value heads: repeated 4 and cast 6, twice; squared 8, summed
// 4, multiplied 8, twice; scaled 8; padded 8, twice; multiplied with rates 8 and with three decays
// 24; solved 8; cast for products 6, seven times. Backward two derivatives of each product, 12 and
// 8, and sums 12.
constexpr Passes kKeys = {.forward = {.streamed = 72, .converted = 70},
                          .backward = {.streamed = 6 * 32, .converted = 70}};
// Of values: cast 6, padded 8, multiplied 8, solved 8, subtracted 10, cast twice 12, added 6,
// copied 6, laid out 8, cast 6; the norm 36, gate 24 and their product 16.
constexpr Passes kValues = {.forward = {.streamed = 94, .converted = 60},
                            .backward = {.streamed = 5 * 32, .converted = 60}};
// Of each pair of tokens of a chunk and value head: subtracted 4, masked 8, exponential 8, twice
// multiplied 10, solved twice 8, cast 6.
constexpr Passes kPairs = {.forward = {.streamed = 48, .converted = 6},
                           .backward = {.streamed = 2 * 32 + 24, .converted = 6}};
// Of each channel: copied, convolved and activated 4 each; backward copied 4, twice convolved 4 and
// 4, activated 6, zeros and a part of them 6.
constexpr Passes kChannels = {.forward = {.streamed = 12}, .backward = {.streamed = 24}};
// Of each element of a state: cast twice 12, multiplied 8, added 10; backward twice as much.
constexpr Passes kStates = {.forward = {.streamed = 18, .converted = 12},
                            .backward = {.streamed = 36, .converted = 24}};
// A chunk's gradient lies in zeros of all chunks, 4, which are added up, 12; of the output all are
// copied, 8.
constexpr Passes kZeros = {.forward = {}, .backward = {.streamed = 4 + 12}};
constexpr Passes kCopied = {.forward = {}, .backward = {.streamed = 8}};

// Products of one token and value head: two of a chunk's keys, two triangular systems, three with
// the state, one of a chunk's values.
double product_flops(const DeltaSpec& delta) {
  const double key = number(delta.key_head_dim);
  const double value = number(delta.value_head_dim);
  return 2 * 2 * kChunk * key + kChunk * (key + value) + 3 * 2 * key * value + 2 * kChunk * value;
}

BlockTime recurrence(const BlockContext& context) {
  const DeltaSpec& delta = context.model().delta;
  const double tokens = number(context.tokens);
  const double heads = number(delta.value_heads);
  const double keys = tokens * heads * number(delta.key_head_dim);
  const double values = tokens * number(delta.value_width());
  const double pairs = tokens * heads * kChunk;
  const double chunks = number(div_ceil(context.job.sequence_length, std::int64_t{64}));
  BlockTime time = memory_bound(context, keys, kKeys);
  add(time, memory_bound(context, values, kValues));
  add(time, memory_bound(context, pairs, kPairs));
  add(time, memory_bound(context, tokens * number(2 * delta.key_width() + delta.value_width()),
                         kChannels));
  add(time, memory_bound(context, keys * number(delta.value_head_dim) / kChunk, kStates));
  add(time, memory_bound(context, chunks * (3 * keys + values + pairs), kZeros));
  add(time, memory_bound(context, chunks * values, kCopied));
  BlockTime products;
  products.forward_flops = tokens * heads * product_flops(delta);
  const GpuSpec& gpu = context.gpu();
  products.forward_s = products.forward_flops / (gpu.bf16_flops_per_s * gpu.constants->gemm_share);
  products.backward_input_s = 2 * products.forward_s;
  note(context, PieceKind::kProduct, products);
  add(time, products);
  return time;
}

// Of each channel of a short convolution: product 6, copy 4, convolution 4, product 6; backward
// their derivatives 12, 12, copy 4, two of the convolution 8 and three parts put together 12.
constexpr Passes kShortConvolution = {.forward = {.streamed = 20}, .backward = {.streamed = 48}};

void add_convolution(const BlockContext& context, LayerParts& parts) {
  const std::int64_t hidden = context.model().hidden;
  const Precision precision = context.plan.precision;
  begin_part(context, "attention");
  parts.attention = memory_bound(context, number(context.tokens * hidden), kShortConvolution);
  begin_part(context, "projections");
  parts.projections =
      linear(context, {.m = context.tokens, .n = 3 * hidden, .k = hidden}, precision);
  add(parts.projections,
      linear(context, {.m = context.tokens, .n = hidden, .k = hidden}, precision));
}

}  // namespace

void add_mixer(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  if (layer.mixer == MixerKind::kShortConvolution) {
    return add_convolution(context, parts);
  }
  const DeltaSpec& delta = context.model().delta;
  const std::int64_t inner = delta.value_width();
  const std::int64_t projected = 2 * delta.key_width() + 2 * inner + 2 * delta.value_heads;
  const Precision precision = context.plan.precision;
  const std::int64_t hidden = context.model().hidden;
  begin_part(context, "attention");
  parts.attention = recurrence(context);
  begin_part(context, "projections");
  parts.projections =
      linear(context, {.m = context.tokens, .n = projected, .k = hidden}, precision);
  add(parts.projections,
      linear(context, {.m = context.tokens, .n = hidden, .k = inner}, precision));
}

}  // namespace shardplan::huggingface
