#include "estimator/frameworks/pieces/huggingface/layer.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/checkpoint.h"
#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/layers/ffn.h"
#include "estimator/frameworks/pieces/huggingface/layers/mixers.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;

AttentionSizes LayerRun::attention_sizes() const {
  const std::int64_t exchanging = sizes.rings ? 1 : sizes.cp;
  return {.tokens = sizes.tokens * exchanging,
          .sequence = sizes.rings ? sizes.sequence / sizes.cp : sizes.sequence,
          .query_heads = sizes.query_heads / exchanging,
          .key_heads = sizes.key_heads / exchanging,
          .head_dim = job.model.qk_head_dim(),
          .value_dim = job.model.v_head_dim(),
          .ranks = exchanging,
          .caps_scores = job.model.caps_scores};
}

AttentionSizes LayerRun::attention_sizes_of(const LayerSpec& layer) const {
  AttentionSizes of_layer = attention_sizes();
  if (layer.heads != AttentionHeads{}) {
    of_layer.query_heads = layer.heads.num_heads;
    of_layer.key_heads = layer.heads.num_kv_heads;
    of_layer.head_dim = layer.heads.qk_head_dim;
    of_layer.value_dim = layer.heads.v_head_dim;
  }
  return of_layer;
}

namespace {

// The residual stream is in the type of the table; norms compute in fp32.
Tensor norm_output(const LayerRun& run, const Norm& norm, const Tensor& input, bool is_of_heads) {
  const InRow row(run.graph.tape, kNormRow);
  if (!norm.weight.data.is_defined()) {
    return gemma4_norm(run.graph, norm, input);
  }
  if (is_of_heads && run.fuses_norm_rotary()) {
    return eager::liger_norm(run.graph, norm.weight.data, input, false);
  }
  if (run.hub_kernels().norms) {
    return eager::liger_norm(run.graph, norm.weight.data, input);
  }
  if (run.uses_liger() &&
      !(is_of_heads && run.job.profile.liger_kernel == LigerKernel::kThrough082 &&
        !run.family.always_has_liger_head_norms)) {
    return eager::liger_norm(run.graph, norm.weight.data, input, run.family.reuses_liger_gradient);
  }
  switch (run.family.norm) {
    case NormKind::kLlama: return llama_norm(run.graph, norm, input);
    case NormKind::kGemma: return gemma_norm(run.graph, norm, input);
    case NormKind::kWide: return wide_norm(run.graph, norm, input);
    case NormKind::kGemma4: return gemma4_norm(run.graph, norm, input);
    case NormKind::kCentred: return centred_norm(run.graph, norm, input);
    case NormKind::kLayer: return layer_norm(run.graph, norm, input);
    case NormKind::kPlusOneLayer: return plus_one_layer_norm(run.graph, norm, input);
  }
  return {};
}

}  // namespace

Tensor apply_norm(const LayerRun& run, Norm& norm, const Tensor& input, bool is_of_heads) {
  return eager::call_module(
      run.graph, {&norm, "norm", {&norm.weight, &norm.bias}}, input,
      [&](const Tensor& x) { return norm_output(run, norm, x, is_of_heads); });
}

namespace {

Tensor added(const LayerRun& run, const Tensor& residual, Tensor output) {
  output = eager::dropout(run.graph, output, run.family.residual_dropout);
  if (run.family.scales_residuals) {
    output = eager::scale(run.graph, output);
  }
  return eager::add(run.graph, residual, output);
}

// Gemma4TextRouter: a norm without a weight, and a scale of every channel.
Tensor scaled_for_router(const LayerRun& run, Layer& layer, const Tensor& input) {
  const Norm plain = {.weight = {}, .bias = {}, .width = run.sizes.hidden};
  const Tensor normed = gemma4_norm(run.graph, plain, input);
  return eager::scale(run.graph,
                      eager::multiply_by_row(run.graph, normed, layer.experts.input_scale.data));
}

// A module right below the layer.
Tensor part(const LayerRun& run, const Tensor& input, const eager::CheckpointedFunction& function) {
  return run.checkpoints_parts() ? eager::checkpoint(run.graph, input, function) : function(input);
}

// The modules of a layer, which their checkpoints call again.
struct Parts {
  const LayerRun& run;
  Layer& layer;
  std::size_t place;
  const SharedByLayer& shared;

  Tensor normed(Norm& norm, const Tensor& input) const {
    if (norm.width == 0) {
      return input;
    }
    return part(run, input,
                [parts = *this, &norm](const Tensor& x) { return apply_norm(parts.run, norm, x); });
  }
  Tensor mixed(const Tensor& input) const {
    return part(run, input, [parts = *this](const Tensor& x) {
      return huggingface::mixed(parts.run, parts.layer, parts.place, parts.shared, x);
    });
  }
  Tensor ffn(const Tensor& input) const {
    return part(run, input, [parts = *this](const Tensor& x) {
      return huggingface::ffn(parts.run, parts.layer, x);
    });
  }
};

// Gemma4TextDecoderLayer: experts read what the dense FFN's norm reads, and both are added.
Tensor beside_experts(const Parts& parts, const Tensor& residual, const Tensor& of_ffn) {
  const LayerRun& run = parts.run;
  Layer& layer = parts.layer;
  const InRow row(run.graph.tape, kFfnRow);
  const Tensor dense = parts.normed(layer.beside_experts, of_ffn);
  Experts& experts = layer.experts;
  const ExpertSizes sizes = expert_sizes(run);
  const eager::Module router = {
      .place = &experts.router,
      .name = "router",
      .parameters = {&experts.router, &experts.input_scale, &experts.expert_scale}};
  const Tensor weights = eager::call_module(run.graph, router, residual, [&](const Tensor& x) {
    return weights_of_chosen(run.graph, experts, scaled_for_router(run, layer, x), sizes);
  });
  const Tensor input = parts.normed(layer.experts_input, residual);
  const eager::Module module = {
      .place = &experts, .name = "experts", .parameters = {&experts.gate_up, &experts.down}};
  const Tensor output = eager::call_module(run.graph, module, input, [&](const Tensor& x) {
    return outputs_of_chosen(run, experts, x, weights, sizes);
  });
  return eager::add(run.graph, dense, parts.normed(layer.after_experts, output));
}

// sum += term: nothing is made.
Tensor added_in_place(const LayerRun& run, const Tensor& sum, const Tensor& term) {
  eager::NodeBuilder node(run.graph, {&sum, &term});
  Tensor output = sum;
  return node.finish(std::move(output), [](eager::BackwardCall& call) {
    return eager::Tensors{call.gradients[0], std::move(call.gradients[0])};
  });
}

// hidden_states *= self.layer_scalar.
Tensor scaled_in_place(const LayerRun& run, const Tensor& hidden) {
  eager::NodeBuilder node(run.graph, {&hidden});
  Tensor output = hidden;
  return node.finish(std::move(output), [](eager::BackwardCall& call) {
    const Tensor& gradient = call.gradients[0];
    return eager::Tensors{call.graph.make(gradient.elements, gradient.dtype)};
  });
}

// Gemma4TextDecoderLayer: what the layer's own embedding of its tokens adds.
Tensor per_layer_output(const Parts& parts, const Tensor& of_layer, const Tensor& hidden) {
  const InRow row(parts.run.graph.tape, kFfnRow);
  PerLayerInput& input = parts.layer.per_layer;
  return parts.normed(input.norm, per_layer_product(parts.run.graph, input, of_layer, hidden));
}

// FalconDecoderLayer: one norm, or one each, which come first.
Tensor falcon_output(const Parts& parts, const Tensor& input) {
  const Tensor normed = parts.normed(parts.layer.attention_norm, input);
  const Tensor of_norm =
      parts.layer.ffn_norm.width > 0 ? parts.normed(parts.layer.ffn_norm, input) : normed;
  const Tensor of_attention = parts.mixed(normed);
  const Tensor of_ffn = parts.ffn(of_norm);
  return added(parts.run, input, added_in_place(parts.run, of_ffn, of_attention));
}

// Attention and FFN side by side, behind one norm or one each.
Tensor parallel_output(const Parts& parts, const Tensor& input) {
  if (parts.run.family.adds_ffn_in_place) {
    return falcon_output(parts, input);
  }
  const Tensor normed = parts.normed(parts.layer.attention_norm, input);
  const Tensor of_attention = parts.mixed(normed);
  const bool has_own_norm = parts.layer.ffn_norm.width > 0;
  const Tensor of_ffn =
      parts.ffn(has_own_norm ? parts.normed(parts.layer.ffn_norm, input) : normed);
  return added(parts.run, added(parts.run, input, of_attention), of_ffn);
}

// A layer that is a mixer or an FFN alone.
Tensor single_output(const Parts& parts, bool is_ffn, const Tensor& input) {
  Tensor hidden = parts.normed(parts.layer.attention_norm, input);
  hidden = is_ffn ? parts.ffn(hidden) : parts.mixed(hidden);
  return added(parts.run, input, hidden);
}

Tensor layer_output(const LayerRun& run, Layer& layer, std::size_t place,
                    const SharedByLayer& shared, const Tensor& input) {
  const InRow row(run.graph.tape, kResidualRow);
  const Parts parts = {.run = run, .layer = layer, .place = place, .shared = shared};
  const LayerSpec& spec = run.job.model.layers[place];
  if (run.job.model.parallel_ffn) {
    return parallel_output(parts, input);
  }
  if (spec.mixer == MixerKind::kNone || !spec.has_ffn) {
    return single_output(parts, spec.has_ffn, input);
  }
  Tensor hidden = parts.normed(layer.attention_norm, input);
  hidden = parts.mixed(hidden);
  hidden = parts.normed(layer.after_attention, hidden);
  hidden = added(run, input, hidden);
  const Tensor residual = hidden;
  hidden = parts.normed(layer.ffn_norm, hidden);
  hidden = parts.ffn(hidden);
  if (spec.is_moe && run.job.model.moe.beside_dense) {
    hidden = beside_experts(parts, residual, hidden);
  }
  hidden = parts.normed(layer.after_ffn, hidden);
  hidden = added(run, residual, hidden);
  if (run.per_layer_inputs != nullptr) {
    const Tensor of_layer = (*run.per_layer_inputs)[place];
    hidden = eager::add(run.graph, hidden, per_layer_output(parts, of_layer, hidden));
  }
  return run.family.scales_layers ? scaled_in_place(run, hidden) : hidden;
}

}  // namespace

Tensor layer_forward(const LayerRun& run, Layer& layer, std::size_t place,
                     const SharedByLayer& shared, const Tensor& input) {
  return eager::call_module(run.graph, {&layer, "layer", {}}, input, [&](const Tensor& x) {
    return layer_output(run, layer, place, shared, x);
  });
}

}  // namespace shardplan::huggingface
