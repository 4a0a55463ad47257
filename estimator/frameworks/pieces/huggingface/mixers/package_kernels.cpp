// Every number counts bytes of one element that kernels read and write; e are those of an element
// in the stream's type. Source of what kernels reach and of seconds: data/measured/
// mixer_kernels_h200.json (fla-core 0.6.0, mamba_ssm 2.3.2.post1, causal-conv1d 1.7.0).
#include "estimator/frameworks/pieces/huggingface/mixers/package_kernels.h"

#include "estimator/frameworks/pieces/combined_scan_work.h"
#include "estimator/frameworks/pieces/delta_rule_work.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/plan/time_constants.h"

namespace shardplan::huggingface {
namespace {

// Of what kernels without such losses would reach: causal_conv1d and the kernels of Mamba-2's scan.
struct Reached {
  double forward = 1;
  double backward = 1;
};
constexpr Reached kConvolutionReached = {.forward = 0.71, .backward = 0.52};
constexpr Reached kScanReached = {.forward = 0.73, .backward = 0.52};
Passes slowed(const Passes& passes, const Reached& reached) {
  Passes slow = passes;
  slow.forward.fused /= reached.forward;
  slow.backward.fused /= reached.backward;
  return slow;
}

// The state goes from chunk to chunk, one after the other: seconds of each, in as many blocks as
// fit the GPU at once. Backward it goes again, and its gradient comes back.
struct StateSteps {
  double forward_s = 0;
  double backward_s = 0;
};
constexpr StateSteps kGatedSteps = {.forward_s = 1.18e-6, .backward_s = 3.44e-6};
constexpr StateSteps kKimiSteps = {.forward_s = 1.53e-6, .backward_s = 3.43e-6};
constexpr std::int64_t kStateColumns = 64;  // of values, which a block carries

// Kimi's kernels within chunks exponentiate a decay for every pair of tokens and channel of keys:
// of the peak of products that they stand for, two forward and four backward.
constexpr Reached kPairsReached = {.forward = 0.0171, .backward = 0.0053};

// Convolved and activated 2; backward its gradient 3, and parts put together 2.
Passes convolution_kernels(double e) {
  Passes passes =
      slowed({.forward = {.fused = 2 * e}, .backward = {.fused = 3 * e}}, kConvolutionReached);
  passes.backward.streamed = 2 * e;
  return passes;
}
// conv1d copies channels before tokens, convolves and is activated; backward copied, twice
// convolved, activated and put together.
constexpr Passes kPlainConvolution = {.forward = {.streamed = 12}, .backward = {.streamed = 24}};

// Of one projection's parts for every key head: each copied and put together.
constexpr Passes kJointParts = {.forward = {.streamed = 8}, .backward = {.streamed = 8}};

// Queries and keys in front of the rule: repeated for value heads or copied 2, normed 2; backward
// summed over repetitions 2, normed back 3.
Passes front_kernels(double e) {
  return {.forward = {.fused = 2 * e, .streamed = 2 * e},
          .backward = {.fused = 3 * e, .streamed = 2 * e}};
}
Passes copied_values(double e) {
  return {.forward = {.streamed = 2 * e}, .backward = {}};
}

// The norm in fp32 by single operators: squared 8, averaged 4, multiplied 8, weighted 4; the gate
// activated 8 and their product 10; cast four times. Backward two derivatives of the product 22 and
// of the weight 12, those of the gate 12, of the root 16 and of the square 24, and sums 12.
constexpr Passes kGatedNorm = {.forward = {.streamed = 42, .converted = 24},
                               .backward = {.streamed = 98, .converted = 30}};

// Kimi's rule reads decays of every channel of keys in fp32: summed up 8, by two kernels 8;
// backward three more 16, and gradients summed up 8.
constexpr Passes kDecays = {.forward = {.fused = 16}, .backward = {.fused = 24}};
// Its queries and keys beside kernels within chunks: weights are made of them again 3.
Passes kimi_keys(double e) {
  return {.forward = {.fused = 5 * e}, .backward = {.fused = 3 * e}};
}
// The decays themselves, by single operators in fp32: shifted 8, compared 5, exponential 8, shifted
// 8, logarithm 8, chosen 13, multiplied 8; backward a product's two 24, the choice 18, logarithm,
// exponential and their sums 36.
constexpr Passes kForgetGate = {.forward = {.streamed = 58, .converted = 6},
                                .backward = {.streamed = 78, .converted = 6}};

BlockTime products(const BlockContext& context, double flops, double backward_share) {
  BlockTime time;
  time.forward_flops = flops;
  const GpuSpec& gpu = context.gpu();
  time.forward_s = flops / (gpu.bf16_flops_per_s * gpu.constants->gemm_share);
  time.backward_input_s = backward_share * time.forward_s;
  note(context, PieceKind::kProduct, time);
  return time;
}

Passes convolution_passes(const BlockContext& context) {
  return context.job.profile.convolution_kernels ? convolution_kernels(context.element_bytes)
                                                 : kPlainConvolution;
}

// A wait of that many seconds for each step of a state.
BlockTime state_time(const BlockContext& context, const StateSteps& steps) {
  const DeltaSpec& delta = context.model().delta;
  const std::int64_t sequence = context.job.sequence_length;
  const std::int64_t blocks = div_ceil(context.tokens, sequence) * delta.value_heads *
                              div_ceil(delta.value_head_dim, kStateColumns);
  const double waits =
      number(div_ceil(sequence, kRuleChunkTokens) * div_ceil(blocks, context.gpu().num_sms));
  BlockTime time;
  time.forward_s = waits * steps.forward_s;
  time.backward_input_s = waits * steps.backward_s;
  note(context, PieceKind::kElementwise, time);
  return time;
}

// A delta rule's kernels but for its queries and keys, what copies its values, and the norm behind.
// Backward computes forward's products but the output's again, and two of each.
BlockTime rule_time(const BlockContext& context, const StateSteps& steps) {
  const DeltaSpec& delta = context.model().delta;
  const double e = context.element_bytes;
  const double tokens = number(context.tokens);
  const double heads = number(delta.value_heads);
  const double values = tokens * number(delta.value_width());
  BlockTime time =
      memory_bound(context, tokens * number(2 * delta.key_width() + delta.value_width()),
                   convolution_passes(context));
  add(time, memory_bound(context, values, delta_rule_values(e) + copied_values(e)));
  add(time, memory_bound(context, values, kGatedNorm));
  add(time,
      memory_bound(context, tokens * heads * number(kRuleChunkTokens), delta_rule_triangles(e)));
  add(time, state_time(context, steps));
  add(time, products(context, tokens * heads * delta_rule_flops(delta), 3));
  return time;
}

// Queries and keys as wide as value heads.
double key_elements(const BlockContext& context) {
  const DeltaSpec& delta = context.model().delta;
  return number(context.tokens * delta.value_heads * delta.key_head_dim);
}

// Products of two tokens of a chunk and channel of keys, and what the kernels take for them.
BlockTime pairs_time(const BlockContext& context) {
  constexpr double kForwardProducts = 2 * 2;
  constexpr double kBackwardProducts = 4 * 2;
  const double pairs = key_elements(context) * number(kRuleChunkTokens);
  const double peak = context.gpu().bf16_flops_per_s;
  BlockTime time;
  time.forward_s = pairs * kForwardProducts / (peak * kPairsReached.forward);
  time.backward_input_s = pairs * kBackwardProducts / (peak * kPairsReached.backward);
  note(context, PieceKind::kElementwise, time);
  return time;
}

}  // namespace

BlockTime package_delta_time(const BlockContext& context) {
  const DeltaSpec& delta = context.model().delta;
  const double e = context.element_bytes;
  BlockTime time = rule_time(context, kGatedSteps);
  add(time,
      memory_bound(context, 2 * key_elements(context), delta_rule_keys(e) + front_kernels(e)));
  if (class_of(context.model()).joins_delta_projections) {
    add(time,
        memory_bound(context,
                     number(context.tokens * (2 * delta.key_width() + 2 * delta.value_width())),
                     kJointParts));
  }
  return time;
}

BlockTime package_kimi_time(const BlockContext& context) {
  const double values = number(context.tokens * context.model().delta.value_width());
  const double e = context.element_bytes;
  BlockTime time = rule_time(context, kKimiSteps);
  add(time, memory_bound(context, 2 * key_elements(context), kimi_keys(e) + front_kernels(e)));
  add(time, pairs_time(context));
  add(time, memory_bound(context, values, kDecays));
  add(time, memory_bound(context, values, kForgetGate));
  return time;
}

// Backward makes states and pairs again and has two products for each of forward's.
BlockTime combined_scan_time(const BlockContext& context) {
  const MambaSpec& mamba = context.model().mamba;
  const double e = context.element_bytes;
  const double tokens = number(context.tokens);
  const double values = tokens * number(mamba.inner);
  const double matrices = 2 * tokens * number(mamba.groups * mamba.state);
  const double chunk = number(mamba.chunk);
  BlockTime time =
      memory_bound(context, values + matrices, slowed(combined_scan_channels(e), kScanReached));
  add(time, memory_bound(context, values, slowed(combined_scan_values(e), kScanReached)));
  add(time, memory_bound(context, matrices, slowed(combined_scan_matrices(e), kScanReached)));
  add(time, memory_bound(context, values * number(mamba.state) / chunk,
                         slowed(combined_scan_states(e), kScanReached)));
  add(time, memory_bound(context, tokens * number(mamba.groups) * chunk,
                         slowed(kCombinedScanPairs, kScanReached)));
  add(time, products(context, tokens * combined_scan_flops(mamba, mamba.chunk), 3));
  return time;
}

// Values, steps and the gate are copied channels before tokens, 6; the scan reads them and writes
// its output before and behind the gate 5. Backward the output's gradient is copied 2; those four
// and the output are read 5 and three gradients written 3.
BlockTime selective_scan_time(const BlockContext& context) {
  const MambaSpec& mamba = context.model().mamba;
  const double e = context.element_bytes;
  const double values = number(context.tokens * mamba.inner);
  BlockTime time = memory_bound(context, values, convolution_passes(context));
  add(time, memory_bound(context, values,
                         {.forward = {.fused = 5 * e, .rearranged = 6 * e},
                          .backward = {.fused = 8 * e, .rearranged = 2 * e}}));
  return time;
}

// Products with both gates 6 and 6; backward their derivatives 24, and three parts put together 12.
BlockTime package_convolution_time(const BlockContext& context) {
  const double elements = number(context.tokens * context.model().hidden);
  BlockTime time = memory_bound(context, elements, convolution_kernels(context.element_bytes));
  add(time,
      memory_bound(context, elements, {.forward = {.streamed = 12}, .backward = {.streamed = 36}}));
  return time;
}

}  // namespace shardplan::huggingface
