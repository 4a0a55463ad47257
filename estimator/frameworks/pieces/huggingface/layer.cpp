#include "estimator/frameworks/pieces/huggingface/layer.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/checkpoint.h"
#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/eager/tiles.h"
#include "estimator/frameworks/pieces/huggingface/fused_adapters.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/layer_attention.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;

AttentionSizes LayerRun::attention_sizes() const {
  const std::int64_t exchanging = sizes.rings ? 1 : sizes.cp;
  return {.tokens = sizes.tokens * exchanging,
          .sequence = sizes.rings ? sizes.sequence / sizes.cp : sizes.sequence,
          .query_heads = sizes.query_heads / exchanging,
          .key_heads = sizes.key_heads / exchanging,
          .value_dim = job.model.v_head_dim(),
          .ranks = exchanging,
          .caps_scores = job.model.caps_scores};
}

namespace {

// The residual stream is in the type of the table; norms compute in fp32.
Tensor norm_output(const LayerRun& run, const Norm& norm, const Tensor& input, bool is_of_heads) {
  const InRow row(run.graph.tape, kNormRow);
  if (is_of_heads && run.fuses_norm_rotary()) {
    return eager::liger_norm(run.graph, norm.weight.data, input, false);
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

// NemotronHMoE: the router sees tokens whole, experts see them projected.
Tensor routed_experts(const LayerRun& run, Layer& layer, const Tensor& input) {
  const MoeSpec& moe = run.job.model.moe;
  ExpertSizes sizes = {.router = run.family.router,
                       .tokens = run.sizes.tokens,
                       .hidden = run.sizes.hidden,
                       .ffn = moe.expert_ffn,
                       .experts = moe.num_experts,
                       .chosen = moe.topk,
                       .is_eager = run.job.profile.eager_experts,
                       .is_gated = run.job.model.gated_ffn,
                       .activation = run.job.model.activation};
  const Tensor weights = weights_of_chosen(run.graph, layer.experts, input, sizes);
  if (moe.latent == 0) {
    return experts_forward(run.graph, layer.experts, input, weights, sizes);
  }
  sizes.hidden = moe.latent;
  const Tensor latent = project(run.graph, layer.latent_input, input);
  return project(run.graph, layer.latent_output,
                 experts_forward(run.graph, layer.experts, latent, weights, sizes));
}

// Qwen2-MoE has its shared expert in front of the others, and weights it; DeepSeek and GLM-4.5 have
// theirs behind them.
Tensor experts(const LayerRun& run, Layer& layer, const Tensor& input) {
  if (!layer.shared_experts.is_defined()) {
    return routed_experts(run, layer, input);
  }
  const bool is_gated = run.job.model.moe.shared_gate;
  const auto shared_experts = [&] {
    return feed_forward(run.graph, layer.shared_experts, input, run.uses_liger());
  };
  if (!is_gated && !run.family.runs_shared_experts_first) {
    const Tensor output = routed_experts(run, layer, input);
    return eager::add(run.graph, output, shared_experts());
  }
  Tensor shared = shared_experts();
  const Tensor output = routed_experts(run, layer, input);
  if (is_gated) {
    const Tensor gate = project(run.graph, layer.shared_gate, input);
    shared = eager::multiply(run.graph, eager::sigmoid(run.graph, gate), shared);
  }
  return eager::add(run.graph, output, shared);
}

// Runs `mixer`, a function of the tape's graph, its weights, the input and its sizes, and the
// product behind it.
template <typename Weights, typename Widths, typename Mixer>
Tensor mixed_output(const LayerRun& run, Weights& weights, const Widths& widths, Mixer mixer,
                    const Tensor& input) {
  const InRow row(run.graph.tape, kRecurrenceRow);
  const Tensor output =
      mixer(run.graph, weights, input,
            {.tokens = run.sizes.tokens, .sequence = run.sizes.sequence, .widths = widths});
  return project(run.graph, weights.output, output);
}

Tensor delta_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  return mixed_output(run, layer.delta_net, run.job.model.delta, delta_net, input);
}

Tensor mamba_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  return mixed_output(run, layer.mamba, run.job.model.mamba, mamba, input);
}

Tensor selective_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  return mixed_output(run, layer.selective, run.job.model.mamba, selective_scan, input);
}

Tensor call_mamba(const LayerRun& run, Layer& layer, const Tensor& input) {
  return eager::call_module(run.graph, {&layer, "mamba", {}}, input,
                            [&](const Tensor& x) { return mamba_output(run, layer, x); });
}

// FalconH1DecoderLayer: the state space first; outputs are scaled and added.
Tensor mixed_twice(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                   const Tensor& input) {
  const auto scaled = [&run](const Tensor& tensor) {
    return run.family.scales_parts ? eager::scale(run.graph, tensor) : tensor;
  };
  const Tensor of_states = scaled(call_mamba(run, layer, input));
  const Tensor of_attention = scaled(attention(run, layer, place, shared, scaled(input)));
  return eager::add(run.graph, of_states, of_attention);
}

// What mixes the tokens of a layer.
Tensor mixed(const LayerRun& run, Layer& layer, std::size_t place, const SharedByLayer& shared,
             const Tensor& input) {
  const LayerSpec& spec = run.job.model.layers[place];
  if (spec.has_mamba_beside) {
    return mixed_twice(run, layer, place, shared.of(spec), input);
  }
  if (spec.mixer == MixerKind::kGatedDelta) {
    return eager::call_module(run.graph, {&layer, "linear_attn", {}}, input,
                              [&](const Tensor& x) { return delta_output(run, layer, x); });
  }
  if (spec.mixer == MixerKind::kMamba2) {
    return call_mamba(run, layer, input);
  }
  if (spec.mixer == MixerKind::kMamba1) {
    return eager::call_module(run.graph, {&layer, "mamba", {}}, input,
                              [&](const Tensor& x) { return selective_output(run, layer, x); });
  }
  if (spec.mixer == MixerKind::kShortConvolution) {
    return eager::call_module(run.graph, {&layer, "conv", {}}, input, [&](const Tensor& x) {
      const InRow row(run.graph.tape, kRecurrenceRow);
      return short_convolution(
          run.graph, layer.convolution, x,
          {.sequence = run.sizes.sequence, .taps = run.job.model.short_convolution.tokens});
    });
  }
  return attention(run, layer, place, shared.of(spec), input);
}

// Parameters of linear layers, in the order of their modules.
std::vector<eager::Parameter*> parameters_of(const std::vector<Linear*>& linears) {
  std::vector<eager::Parameter*> found;
  for (Linear* linear : linears) {
    for (eager::Parameter* each : {&linear->weight, &linear->bias, &linear->a, &linear->b}) {
      if (each->data.is_defined()) {
        found.push_back(each);
      }
    }
  }
  return found;
}

std::vector<Linear*> linears_of(FeedForward& ffn) {
  return {&ffn.gate_up, &ffn.gate, &ffn.up, &ffn.down};
}

// What an FFN trains.
std::vector<eager::Parameter*> trained_of(FeedForward& ffn) {
  std::vector<eager::Parameter*> found = parameters_of(linears_of(ffn));
  std::erase_if(found, [](const eager::Parameter* each) { return !each->data.requires_grad(); });
  return found;
}

// A block of experts with all that it holds.
eager::Module block_of_experts(Layer& layer) {
  Experts& experts = layer.experts;
  eager::Module block = {
      .place = &layer,
      .name = "mlp",
      .parameters = {&experts.gate_up, &experts.down, &experts.router, &experts.gate_up_bias,
                     &experts.down_bias, &experts.router_bias},
      .is_leaf = true};
  std::vector<Linear*> others = linears_of(layer.shared_experts);
  others.insert(others.end(), {&layer.shared_gate, &layer.latent_input, &layer.latent_output});
  const std::vector<eager::Parameter*> beside = parameters_of(others);
  block.parameters.insert(block.parameters.end(), beside.begin(), beside.end());
  return block;
}

Tensor ffn_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  const InRow row(run.graph.tape, kFfnRow);
  const FeedForward& ffn = layer.ffn;
  if (run.fuses_adapters() && have_adapters({&ffn.gate, &ffn.up, &ffn.down})) {
    return fused_feed_forward(run.graph, ffn, input);
  }
  return layer.experts.down.data.is_defined()
             ? experts(run, layer, input)
             : feed_forward(run.graph, layer.ffn, input, run.uses_liger());
}

Tensor ffn(const LayerRun& run, Layer& layer, const Tensor& input) {
  const eager::Module module = layer.experts.down.data.is_defined()
                                   ? block_of_experts(layer)
                                   : eager::Module{&layer, "mlp", {}};
  const std::int64_t tiles = run.job.profile.ffn_tiles;
  if (tiles > 0 && !module.is_leaf) {
    return eager::tiled(run.graph, input, run.sizes.sequence / run.sizes.cp, tiles,
                        trained_of(layer.ffn),
                        [&run, &layer](const Tensor& x) { return ffn_output(run, layer, x); });
  }
  return eager::call_module(run.graph, module, input,
                            [&](const Tensor& x) { return ffn_output(run, layer, x); });
}

Tensor added(const LayerRun& run, const Tensor& residual, Tensor output) {
  output = eager::dropout(run.graph, output, run.family.residual_dropout);
  if (run.family.scales_residuals) {
    output = eager::scale(run.graph, output);
  }
  return eager::add(run.graph, residual, output);
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

// sum += term: nothing is made.
Tensor added_in_place(const LayerRun& run, const Tensor& sum, const Tensor& term) {
  eager::NodeBuilder node(run.graph, {&sum, &term});
  Tensor output = sum;
  return node.finish(std::move(output), [](eager::BackwardCall& call) {
    return eager::Tensors{call.gradients[0], std::move(call.gradients[0])};
  });
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
  hidden = parts.normed(layer.after_ffn, hidden);
  return added(run, residual, hidden);
}

}  // namespace

Tensor layer_forward(const LayerRun& run, Layer& layer, std::size_t place,
                     const SharedByLayer& shared, const Tensor& input) {
  return eager::call_module(run.graph, {&layer, "layer", {}}, input, [&](const Tensor& x) {
    return layer_output(run, layer, place, shared, x);
  });
}

}  // namespace shardplan::huggingface
