// Every number counts bytes of one element that kernels read and write; e are those of an element
// in the stream's type.
#include "estimator/frameworks/pieces/huggingface/mixers/package_kernels.h"

#include "estimator/frameworks/pieces/combined_scan_work.h"
#include "estimator/frameworks/pieces/delta_rule_work.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/plan/time_constants.h"

namespace shardplan::huggingface {
namespace {

// Convolved and activated 2; backward its gradient 3, and parts put together 2.
Passes convolution_kernels(double e) {
  return {.forward = {.fused = 2 * e}, .backward = {.fused = 3 * e, .streamed = 2 * e}};
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

// Kimi's rule reads decays of every channel of keys in fp32: summed up 8, by four kernels 16;
// backward 16, gradients of all three in fp32 written, read and made once more 40, summed 8.
constexpr Passes kDecays = {.forward = {.fused = 24}, .backward = {.fused = 64}};
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

// The rule's kernels, what copies and norms its inputs, and the norm behind. Backward computes
// forward's products but the output's again, and two of each.
BlockTime rule_time(const BlockContext& context) {
  const DeltaSpec& delta = context.model().delta;
  const double e = context.element_bytes;
  const double tokens = number(context.tokens);
  const double heads = number(delta.value_heads);
  const double keys = tokens * heads * number(delta.key_head_dim);
  const double values = tokens * number(delta.value_width());
  BlockTime time =
      memory_bound(context, tokens * number(2 * delta.key_width() + delta.value_width()),
                   convolution_passes(context));
  add(time, memory_bound(context, 2 * keys, delta_rule_keys(e) + front_kernels(e)));
  add(time, memory_bound(context, values, delta_rule_values(e) + copied_values(e)));
  add(time, memory_bound(context, values, kGatedNorm));
  add(time, memory_bound(context, keys * number(delta.value_head_dim) / number(kRuleChunkTokens),
                         delta_rule_states(e)));
  add(time,
      memory_bound(context, tokens * heads * number(kRuleChunkTokens), delta_rule_triangles(e)));
  add(time, products(context, tokens * heads * delta_rule_flops(delta), 3));
  return time;
}

}  // namespace

BlockTime package_delta_time(const BlockContext& context) {
  const DeltaSpec& delta = context.model().delta;
  BlockTime time = rule_time(context);
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
  BlockTime time = rule_time(context);
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
  BlockTime time = memory_bound(context, values + matrices, combined_scan_channels(e));
  add(time, memory_bound(context, values, combined_scan_values(e)));
  add(time, memory_bound(context, matrices, combined_scan_matrices(e)));
  add(time, memory_bound(context, values * number(mamba.state) / chunk, combined_scan_states(e)));
  add(time, memory_bound(context, tokens * number(mamba.groups) * chunk, kCombinedScanPairs));
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
