// Every number counts bytes of one element that kernels read and write, one kernel an operator, in
// the order of torch_chunk_gated_delta_rule; fp32 between products in bf16.
#include "estimator/frameworks/pieces/huggingface/mixers/kernels.h"

#include "estimator/frameworks/pieces/huggingface/mixers/package_kernels.h"
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

// Of each element of a scan's values: cast 6, padded twice 16, multiplied 8 and 8, added twice 24;
// the gate cast 6, activated 8 and multiplied 12; the norm 34.
constexpr Passes kScanValues = {.forward = {.streamed = 110, .converted = 12},
                                .backward = {.streamed = 2 * 110, .converted = 12}};
// Of both rows of states for each head: repeated 8, padded 8, decayed 8 for one.
constexpr Passes kStateRows = {.forward = {.streamed = 20}, .backward = {.streamed = 40}};
// Of each pair of tokens in a chunk and head: masked twice 16, summed 8, exponential 8, multiplied
// and summed 20.
constexpr Passes kScanPairs = {.forward = {.streamed = 52}, .backward = {.streamed = 104}};
// A product that is written whole and summed; backward the derivatives of both factors, likewise.
constexpr Passes kWholeProduct = {.forward = {.streamed = 8}, .backward = {.streamed = 16}};

// mamba2_chunk_scan makes four products of broadcast factors whole: of pairs and states, of pairs
// and values, and twice of values and states.
BlockTime scan(const BlockContext& context) {
  const MambaSpec& mamba = context.model().mamba;
  const double tokens = number(context.tokens);
  const double values = tokens * number(mamba.inner);
  const double states = tokens * number(mamba.num_heads * mamba.state);
  const double pairs = tokens * number(mamba.num_heads * mamba.chunk);
  const double products =
      pairs * number(mamba.state + mamba.head_dim) + 2 * values * number(mamba.state);
  const std::int64_t channels = mamba.inner + 2 * mamba.groups * mamba.state;
  BlockTime time = memory_bound(context, values, kScanValues);
  add(time, memory_bound(context, 2 * states, kStateRows));
  add(time, memory_bound(context, pairs, kScanPairs));
  add(time, memory_bound(context, tokens * number(channels), kChannels));
  add(time, memory_bound(context, products, kWholeProduct));
  return time;
}

void add_projections(const BlockContext& context, std::int64_t in, std::int64_t out,
                     LayerParts& parts) {
  const Precision precision = context.plan.precision;
  const std::int64_t hidden = context.model().hidden;
  begin_part(context, "projections");
  add(parts.projections, linear(context, {.m = context.tokens, .n = in, .k = hidden}, precision));
  add(parts.projections, linear(context, {.m = context.tokens, .n = hidden, .k = out}, precision));
}

void add_convolution(const BlockContext& context, LayerParts& parts) {
  const std::int64_t hidden = context.model().hidden;
  begin_part(context, "attention");
  add(parts.attention,
      context.job.profile.convolution_kernels
          ? package_convolution_time(context)
          : memory_bound(context, number(context.tokens * hidden), kShortConvolution));
  add_projections(context, 3 * hidden, hidden, parts);
}

// Of every channel, state and token: three products of broadcast factors 4, 4 and 8, an exponential
// 8, a product and a sum of a token's state 12 and 12, its cast 6 and a product that reads it 2;
// backward the derivatives of each, 84.
constexpr Passes kSelectiveStates = {.forward = {.streamed = 50, .converted = 6},
                                     .backward = {.streamed = 84, .converted = 6}};
// For every token its parts of decays and of what enters lie in zeros of all tokens, 4, which are
// added up, 12.
constexpr Passes kSelectiveZeros = {.forward = {}, .backward = {.streamed = 2 * (4 + 12)}};
// Of every channel: steps shifted and bounded 8, cast 6, twice multiplied and added 22, cast 6;
// backward twice as much.
constexpr Passes kSelectiveValues = {.forward = {.streamed = 30, .converted = 12},
                                     .backward = {.streamed = 60, .converted = 24}};

BlockTime token_by_token(const BlockContext& context) {
  const MambaSpec& mamba = context.model().mamba;
  const double values = number(context.tokens * mamba.inner);
  const double states = values * number(mamba.state);
  BlockTime time = memory_bound(context, values, kSelectiveValues);
  add(time, memory_bound(context, values, kChannels));
  add(time, memory_bound(context, states, kSelectiveStates));
  add(time, memory_bound(context, states * number(context.job.sequence_length), kSelectiveZeros));
  return time;
}

void add_selective(const BlockContext& context, LayerParts& parts) {
  const MambaSpec& mamba = context.model().mamba;
  const Precision precision = context.plan.precision;
  begin_part(context, "attention");
  add(parts.attention,
      context.job.profile.mixer_kernels ? selective_scan_time(context) : token_by_token(context));
  add_projections(context, 2 * mamba.inner, mamba.inner, parts);
  add(parts.projections,
      linear(context,
             {.m = context.tokens, .n = mamba.step_rank + 2 * mamba.state, .k = mamba.inner},
             precision));
  add(parts.projections,
      linear(context, {.m = context.tokens, .n = mamba.inner, .k = mamba.step_rank}, precision));
}

void add_mamba(const BlockContext& context, LayerParts& parts) {
  const MambaSpec& mamba = context.model().mamba;
  begin_part(context, "attention");
  add(parts.attention,
      context.job.profile.mixer_kernels ? combined_scan_time(context) : scan(context));
  add_projections(context, 2 * (mamba.inner + mamba.groups * mamba.state) + mamba.num_heads,
                  mamba.inner, parts);
}

void add_delta_net(const BlockContext& context, LayerParts& parts) {
  const DeltaSpec& delta = context.model().delta;
  begin_part(context, "attention");
  add(parts.attention,
      context.job.profile.mixer_kernels ? package_delta_time(context) : recurrence(context));
  add_projections(context, 2 * (delta.key_width() + delta.value_width() + delta.value_heads),
                  delta.value_width(), parts);
}

// Decays and gates go through as many channels as a head has.
void add_kimi_delta(const BlockContext& context, LayerParts& parts) {
  const DeltaSpec& delta = context.model().delta;
  const Precision precision = context.plan.precision;
  begin_part(context, "attention");
  add(parts.attention, package_kimi_time(context));
  add_projections(context, 3 * delta.value_width() + delta.value_heads + 2 * delta.value_head_dim,
                  delta.value_width(), parts);
  for (int i = 0; i < 2; ++i) {
    add(parts.projections,
        linear(context, {.m = context.tokens, .n = delta.value_width(), .k = delta.value_head_dim},
               precision));
  }
}

}  // namespace

void add_mixer(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  if (layer.has_mamba_beside) {
    add_mamba(context, parts);
  }
  switch (layer.mixer) {
    case MixerKind::kGatedDelta: return add_delta_net(context, parts);
    case MixerKind::kKimiDelta: return add_kimi_delta(context, parts);
    case MixerKind::kShortConvolution: return add_convolution(context, parts);
    case MixerKind::kMamba1: return add_selective(context, parts);
    case MixerKind::kMamba2: return add_mamba(context, parts);
    default: return;
  }
}

}  // namespace shardplan::huggingface
