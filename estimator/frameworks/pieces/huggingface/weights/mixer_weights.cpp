// The weights of what mixes tokens in place of attention or beside it.
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::huggingface {

void CausalLm::build_convolution(ShortConvolution& mixer) {
  using enum LinearLayer;
  const ShortConvolutionSpec& spec = job_.model.short_convolution;
  const std::int64_t hidden = sizes_.hidden;
  module_ = "conv.";
  build_linear(mixer.input, kMixerInput, "in_proj", {hidden, 3 * hidden}, spec.has_bias);
  load(mixer.weight, {"conv", ".weight"}, {hidden, spec.tokens}, weights_);
  if (spec.has_bias) {
    load(mixer.bias, {"conv", ".bias"}, {hidden, 1}, weights_);
  }
  build_linear(mixer.output, kMixerOutput, "out_proj", {hidden, hidden}, spec.has_bias);
}

void CausalLm::build_mamba(Mamba& mixer) {
  using enum LinearLayer;
  const MambaSpec& spec = job_.model.mamba;
  const std::int64_t channels = spec.inner + 2 * spec.groups * spec.state;
  const std::int64_t columns = spec.inner + channels + spec.num_heads;
  module_ =
      job_.model.norms_per_layer == 1 ? "mixer." : "mamba.";  // of a layer that is nothing else
  load(mixer.step_bias, {"dt_bias", ""}, {spec.num_heads, 1}, weights_);
  load(mixer.decay_log, {"A_log", ""}, {spec.num_heads, 1}, weights_);
  load(mixer.skip, {"D", ""}, {spec.num_heads, 1}, weights_);
  load(mixer.convolution, {"conv1d", ".weight"}, {channels, spec.convolution}, weights_);
  if (spec.convolution_bias) {
    load(mixer.convolution_bias, {"conv1d", ".bias"}, {channels, 1}, weights_);
  }
  build_linear(mixer.input, kMixerInput, "in_proj", {sizes_.hidden, columns}, spec.projection_bias);
  if (spec.gated_norm) {
    mixer.norm.width = spec.inner / spec.groups;
    load(mixer.norm.weight, {"norm", ".weight"}, {spec.inner, 1}, ends_);
  }
  build_linear(mixer.output, kMixerOutput, "out_proj", {spec.inner, sizes_.hidden},
               spec.projection_bias);
  if (class_.scales_parts) {
    const eager::InRow row(graph_.tape, kBuffersRow);
    mixer.column_scales = graph_.make(columns, weights_);
  }
}

void CausalLm::build_selective(SelectiveScan& mixer) {
  using enum LinearLayer;
  const MambaSpec& spec = job_.model.mamba;
  module_ = "mamba.";
  load(mixer.decay_log, {"A_log", ""}, {spec.inner, spec.state}, weights_);
  load(mixer.skip, {"D", ""}, {spec.inner, 1}, weights_);
  load(mixer.convolution, {"conv1d", ".weight"}, {spec.inner, spec.convolution}, weights_);
  if (spec.convolution_bias) {
    load(mixer.convolution_bias, {"conv1d", ".bias"}, {spec.inner, 1}, weights_);
  }
  build_linear(mixer.input, kMixerInput, "in_proj", {sizes_.hidden, 2 * spec.inner},
               spec.projection_bias);
  build_linear(mixer.selection, kMixerScalars, "x_proj",
               {spec.inner, spec.step_rank + 2 * spec.state}, false);
  build_linear(mixer.steps, kMixerScalars, "dt_proj", {spec.step_rank, spec.inner}, true);
  build_linear(mixer.output, kMixerOutput, "out_proj", {spec.inner, sizes_.hidden},
               spec.projection_bias);
  build_norm(mixer.step_norm, "dt_layernorm", spec.step_rank);
  build_norm(mixer.input_norm, "b_layernorm", spec.state);
  build_norm(mixer.output_norm, "c_layernorm", spec.state);
}

void CausalLm::build_mixer(Layer& layer, const LayerSpec& spec) {
  if (spec.has_mamba_beside) {
    build_mamba(layer.mamba);
  }
  switch (spec.mixer) {
    case MixerKind::kGatedDelta: return build_delta_net(layer.delta_net);
    case MixerKind::kKimiDelta: return build_kimi_delta(layer.kimi_delta);
    case MixerKind::kShortConvolution: return build_convolution(layer.convolution);
    case MixerKind::kMamba2: return build_mamba(layer.mamba);
    case MixerKind::kMamba1: return build_selective(layer.selective);
    case MixerKind::kNone: return;
    default: return build_attention(layer);
  }
}

void CausalLm::build_kimi_delta(KimiDelta& mixer) {
  using enum LinearLayer;
  const DeltaSpec& widths = job_.model.delta;
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t width = widths.value_width();
  const std::int64_t rank = widths.value_head_dim;
  module_ = "self_attn.";
  const auto build = [this](Linear& linear, LinearLayer place, std::string_view name,
                            eager::LinearShape shape) {
    build_linear(linear, place, name, shape, false);
  };
  build(mixer.query, kQuery, "q_proj", {hidden, width});
  build(mixer.key, kMixerInput, "k_proj", {hidden, width});
  build(mixer.value, kMixerInput, "v_proj", {hidden, width});
  load(mixer.convolution, {"conv1d", ".weight"}, {3 * width, widths.convolution}, weights_);
  load(mixer.step_bias, {"forget_gate", ".dt_bias"}, {width, 1}, weights_);
  load(mixer.decay_log, {"forget_gate", ".A_log"}, {widths.value_heads, 1}, weights_);
  build(mixer.decay_down, kMixerScalars, "forget_gate.f_a_proj", {hidden, rank});
  build(mixer.decay_up, kMixerScalars, "forget_gate.f_b_proj", {rank, width});
  build(mixer.rates, kMixerScalars, "b_proj", {hidden, widths.value_heads});
  build(mixer.gate_down, kMixerGate, "g_a_proj", {hidden, rank});
  build(mixer.gate_up, kMixerGate, "g_b_proj", {rank, width});
  build_norm(mixer.norm, "o_norm", widths.value_head_dim);
  build(mixer.output, kOutput, "o_proj", {width, hidden});
}

void CausalLm::build_delta_net(DeltaNet& net) {
  using enum LinearLayer;
  const DeltaSpec& widths = job_.model.delta;
  const std::int64_t hidden = sizes_.hidden;
  const std::int64_t channels = 2 * widths.key_width() + widths.value_width();
  module_ = "linear_attn.";
  const auto build = [this](Linear& linear, LinearLayer place, std::string_view name,
                            eager::LinearShape shape) {
    build_linear(linear, place, name, shape, false);
  };
  load(net.step_bias, {"dt_bias", ""}, {widths.value_heads, 1}, weights_);
  load(net.decay_log, {"A_log", ""}, {widths.value_heads, 1}, weights_);
  load(net.convolution, {"conv1d", ".weight"}, {channels, widths.convolution}, weights_);
  if (class_.joins_delta_projections) {
    build(net.joint, kMixerInput, "in_proj_qkvz", {hidden, channels + widths.value_width()});
    build(net.joint_scalars, kMixerScalars, "in_proj_ba", {hidden, 2 * widths.value_heads});
  } else {
    build(net.queries_keys_values, kMixerInput, "in_proj_qkv", {hidden, channels});
    build(net.gates, kMixerGate, "in_proj_z", {hidden, widths.value_width()});
    build(net.rates, kMixerScalars, "in_proj_b", {hidden, widths.value_heads});
    build(net.decays, kMixerScalars, "in_proj_a", {hidden, widths.value_heads});
  }
  build_norm(net.norm, "norm", widths.value_head_dim);
  net.has_norm_kernel = run_.uses_liger();
  build(net.output, kMixerOutput, "out_proj", {widths.value_width(), hidden});
}

}  // namespace shardplan::huggingface
