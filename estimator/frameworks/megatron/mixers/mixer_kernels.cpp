// Every number counts how often one element is read or written, as in kernels.cpp. Sources: those
// of delta_net.cpp.
#include "estimator/frameworks/megatron/mixers/mixer_kernels.h"

#include "estimator/frameworks/megatron/mixers/mamba_kernels.h"
#include "estimator/frameworks/pieces/delta_rule_work.h"

#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/block_work.h"

namespace shardplan::megatron {
namespace {

// Passes over each channel of the convolution: copied by channel 2 and convolved 2; backward its
// gradient 3, copied back 2, and parts put together 2. Queries and keys, as wide as value heads,
// are copied 2, normed 2 and repeated 2 in front of the rule; backward summed over repetitions 2
// and normed back 3.
Passes channel_kernels(double e) {
  return {.forward = {.fused = 2 * e, .rearranged = 2 * e},
          .backward = {.fused = 3 * e, .rearranged = 4 * e}};
}
Passes key_kernels(double e) {
  return delta_rule_keys(e) + Passes{.forward = {.fused = 4 * e, .rearranged = 2 * e},
                                     .backward = {.fused = 3 * e, .rearranged = 2 * e}};
}

// Passes over each value beside the rule's: copied 2; normed 2 and gated 3, whose gate is copied 2.
// Backward the gate 5, the norm 3, and copied back 2.
Passes value_kernels(double e) {
  return delta_rule_values(e) + Passes{.forward = {.fused = 5 * e, .rearranged = 4 * e},
                                       .backward = {.fused = 8 * e, .rearranged = 2 * e}};
}

// Backward computes forward's products but the output's again, and two of each.
BlockTime delta_rule(const BlockContext& context) {
  const DeltaSpec& delta = context.model().delta;
  const double e = context.element_bytes;
  const double tokens = number(context.tokens);
  const double heads = number(div_ceil(delta.value_heads, context.plan.tp));
  const double keys = tokens * heads * number(delta.key_head_dim);
  const double values = tokens * heads * number(delta.value_head_dim);
  const double channels =
      tokens * number(div_ceil(2 * delta.key_width() + delta.value_width(), context.plan.tp));
  BlockTime time = memory_bound(context, channels, channel_kernels(e));
  add(time, memory_bound(context, 2 * keys, key_kernels(e)));
  add(time, memory_bound(context, values, value_kernels(e)));
  add(time, memory_bound(context, keys * number(delta.value_head_dim) / number(kRuleChunkTokens),
                         delta_rule_states(e)));
  add(time,
      memory_bound(context, tokens * heads * number(kRuleChunkTokens), delta_rule_triangles(e)));
  BlockTime products;
  products.forward_flops = tokens * heads * delta_rule_flops(delta);
  const GpuSpec& gpu = context.gpu();
  products.forward_s = products.forward_flops / (gpu.bf16_flops_per_s * gpu.constants->gemm_share);
  products.backward_input_s = 3 * products.forward_s;
  note(context, PieceKind::kProduct, products);
  add(time, products);
  return time;
}

// The products in front make so much for all ranks, the one behind takes so much.
void add_projections(const BlockContext& context, std::initializer_list<std::int64_t> made,
                     std::int64_t taken, LayerParts& parts) {
  const std::int64_t hidden = context.model().hidden;
  const Precision precision = context.plan.precision;
  begin_part(context, "projections");
  BlockTime in;
  for (const std::int64_t width : made) {
    add(in,
        linear(context, {.m = context.tokens, .n = div_ceil(width, context.plan.tp), .k = hidden},
               precision));
  }
  const BlockTime out =
      linear(context, {.m = context.tokens, .n = hidden, .k = div_ceil(taken, context.plan.tp)},
             precision);
  parts.projections = in;
  add(parts.projections, out);
  add(parts.projections,
      tensor_parallel_region(context, {.in = hidden,
                                       .out = hidden,
                                       .in_element_bytes = gathered_element_bytes(context),
                                       .column = in,
                                       .row = out}));
}

void add_delta_projections(const BlockContext& context, LayerParts& parts) {
  const DeltaSpec& delta = context.model().delta;
  const std::int64_t mixed = 2 * (delta.key_width() + delta.value_width());
  const std::int64_t steps = 2 * delta.value_heads;
  if (context.job.profile.decoupled_in_proj) {
    add_projections(context, {mixed, steps}, delta.value_width(), parts);
  } else {
    add_projections(context, {mixed + steps}, delta.value_width(), parts);
  }
}

}  // namespace

void add_mixer(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  const MambaSpec& mamba = context.model().mamba;
  switch (layer.mixer) {
    case MixerKind::kGatedDelta:
      begin_part(context, "attention");
      parts.attention = delta_rule(context);
      return add_delta_projections(context, parts);
    case MixerKind::kMamba2:
      begin_part(context, "attention");
      parts.attention = mamba_scan(context);
      return add_projections(context,
                             {2 * (mamba.inner + mamba.groups * mamba.state) + mamba.num_heads},
                             mamba.inner, parts);
    default: return;
  }
}

// core/transformer/attention.py, _apply_output_gate: the gate is copied 2 and multiplied 3;
// backward both gradients 5, and the gate's copied back 2.
void add_output_gate(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  const ModelSpec& model = context.model();
  if (model.attention_gate != AttentionGate::kPerElement || layer.mixer != MixerKind::kAttention) {
    return;
  }
  const double e = context.element_bytes;
  const std::int64_t width = div_ceil(model.num_heads, context.plan.tp) * model.head_dim;
  begin_part(context, "projections");
  add(parts.projections, memory_bound(context, number(context.tokens * width),
                                      {.forward = {.fused = 3 * e, .rearranged = 2 * e},
                                       .backward = {.fused = 5 * e, .rearranged = 2 * e}}));
}

}  // namespace shardplan::megatron
