#include "estimator/frameworks/pieces/huggingface/layer.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/checkpoint.h"
#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/sink_attention.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;

AttentionSizes LayerRun::attention_sizes() const {
  return {.tokens = sizes.tokens,
          .sequence = sizes.sequence,
          .query_heads = sizes.query_heads,
          .key_heads = sizes.key_heads,
          .value_dim = job.model.v_head_dim(),
          .caps_scores = job.model.caps_scores};
}

namespace {

// The residual stream is in the type of the table; norms compute in fp32.
Tensor norm_output(const LayerRun& run, const Norm& norm, const Tensor& input, bool is_of_heads) {
  const InRow row(run.graph.tape, kNormRow);
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

bool has_rotary(const LayerRun& run, std::size_t place) {
  return run.job.model.layers[place].has_rotary;
}

bool takes_liger_rotary(const LayerRun& run) {
  return run.uses_liger() && run.family.liger != LigerUse::kNoRotary;
}

// Queries that were put together have their heads in front of tokens, and so has the output of
// the fused kernels.
bool lays_out_heads(const LayerRun& run, std::size_t place) {
  return !is_eager_attention(run.job) && has_rotary(run, place) && !takes_liger_rotary(run) &&
         run.family.rotary != RotaryKind::kHalves && !casts_heads(run.family.rotary);
}

Tensor liger_turned(const LayerRun& run, const Rotary& rotary, const Tensor& input) {
  const Tensor rows = run.family.has_one_qkv ? eager::laid_out(run.graph, input) : input;
  return eager::liger_rotate(run.graph, rows, rotary.cosines, rotary.sines);
}

void turn(const LayerRun& run, std::size_t place, const Rotary& rotary, Heads& heads) {
  if (!has_rotary(run, place)) {
    return;
  }
  if (takes_liger_rotary(run)) {  // of contiguous rows
    Tensor query = liger_turned(run, rotary, heads.query);
    heads.key = liger_turned(run, rotary, heads.key);
    heads.query = std::move(query);
    return;
  }
  const Rotary tables = of_layer(run.graph, run.family.rotary, rotary);
  const Heads given = heads;
  if (run.family.rotary == RotaryKind::kWide) {
    heads.query = eager::to(run.graph, heads.query, DType::kFp32);
    heads.key = eager::to(run.graph, heads.key, DType::kFp32);
  }
  const auto turned = [&](const Tensor& input) {
    const std::int64_t part = input.elements / run.sizes.head_dim * rotary_width(run.job.model);
    return rotate(run.graph, run.family.rotary, input, part, tables);
  };
  Tensor query = turned(heads.query);
  heads.key = turned(heads.key);
  heads.query = std::move(query);
  if (casts_heads(run.family.rotary)) {
    heads.query = eager::to(run.graph, heads.query, given.query.dtype);
    heads.key = eager::to(run.graph, heads.key, given.key.dtype);
  }
}

// The query projection makes the gate, too: views of both, of which the gate is copied.
Heads gated_heads(const LayerRun& run, Layer& layer, const Tensor& input) {
  const Tensor rows = project(run.graph, layer.query, input);
  const eager::Tensors parts = eager::split(run.graph, rows, rows.elements / 2);
  Heads heads;
  heads.gate = eager::laid_out(run.graph, parts[1]);
  heads.query = apply_norm(run, layer.query_norm, parts[0], true);
  const Tensor key = eager::copied_back(run.graph, project(run.graph, layer.key, input));
  heads.key = apply_norm(run, layer.key_norm, key, true);
  heads.value = project(run.graph, layer.value, input);
  return heads;
}

Heads projected_heads(const LayerRun& run, Layer& layer, const Tensor& input) {
  if (run.family.has_one_qkv) {
    const Tensor all = project(run.graph, layer.query_key_value, input);
    const std::int64_t of_head = run.sizes.tokens * run.sizes.head_dim;
    const auto part = [&](std::int64_t heads) {
      return eager::copied_back(run.graph, eager::slice(run.graph, all, of_head * heads));
    };
    Heads heads;
    heads.query = part(run.sizes.query_heads);
    heads.key = part(run.sizes.key_heads);
    heads.value = eager::slice(run.graph, all, of_head * run.sizes.key_heads);
    return heads;
  }
  using enum HeadNorms;
  const ModelSpec& model = run.job.model;
  const auto normed = [&](Norm& norm, const Tensor& heads, bool is_here) {
    return is_here ? apply_norm(run, norm, heads, true) : heads;
  };
  const auto normed_heads = [&](Norm& norm, const Tensor& heads, HeadNorms place) {
    const bool is_of_heads = model.qk_norm && !model.norms_all_heads;
    return normed(norm, heads, is_of_heads && run.family.head_norms == place);
  };
  // Rows become heads in front of tokens.
  const auto project_heads = [&](Linear& linear, Norm& norm) {
    const Tensor rows =
        normed(norm, project(run.graph, linear, input), model.qk_norm && model.norms_all_heads);
    return normed_heads(norm, eager::copied_back(run.graph, rows), kByProjection);
  };
  Heads heads;
  heads.query = project_heads(layer.query, layer.query_norm);
  heads.key = project_heads(layer.key, layer.key_norm);
  heads.value = project(run.graph, layer.value, input);
  heads.query = normed_heads(layer.query_norm, heads.query, kBehindProjections);
  heads.key = normed_heads(layer.key_norm, heads.key, kBehindProjections);
  return heads;
}

Heads heads_of(const LayerRun& run, Layer& layer, std::size_t place, const Rotary& rotary,
               const Tensor& input) {
  if (run.job.model.is_mla()) {
    return latent_heads(run.graph, layer.latent, layer.query, input, rotary,
                        {.tokens = run.sizes.tokens,
                         .heads = run.sizes.query_heads,
                         .widths = run.job.model.mla,
                         .rotary = run.family.rotary});
  }
  const bool has_gate = run.job.model.attention_gate == AttentionGate::kPerElement;
  Heads heads = has_gate ? gated_heads(run, layer, input) : projected_heads(run, layer, input);
  turn(run, place, rotary, heads);
  if (run.job.model.qk_norm && run.family.head_norms == HeadNorms::kBehindRotary) {
    heads.query = apply_norm(run, layer.query_norm, heads.query, true);
    heads.key = apply_norm(run, layer.key_norm, heads.key, true);
  }
  return heads;
}

Tensor attended(const LayerRun& run, const Layer& layer, const Heads& heads, const Tensor& mask) {
  const auto& [query, key, value, gate] = heads;
  const AttentionSizes sizes = run.attention_sizes();
  if (layer.sinks.data.is_defined()) {
    return sink_attention(run.graph, query, key, value, mask, layer.sinks.data, sizes);
  }
  return is_eager_attention(run.job)
             ? eager_attention(run.graph, query, key, value, mask, sizes)
             : scaled_dot_product(run.graph, query, key, value, mask, sizes);
}

Tensor attention_output(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                        const Tensor& input) {
  const InRow row(run.graph.tape, kAttentionRow);
  const Heads heads = heads_of(run, layer, place, shared.rotary, input);
  Tensor output = attended(run, layer, heads, shared.mask);
  if (heads.gate.is_defined()) {
    if (lays_out_heads(run, place)) {
      output = eager::laid_out(run.graph, output);
    }
    output = eager::multiply(run.graph, output, eager::sigmoid(run.graph, heads.gate));
    return project(run.graph, layer.output, output);
  }
  return project(run.graph, layer.output,
                 lays_out_heads(run, place) ? eager::laid_out(run.graph, output) : output);
}

Tensor attention(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                 const Tensor& input) {
  return eager::call_module(run.graph, {&layer, "self_attn", {}}, input, [&](const Tensor& x) {
    return attention_output(run, layer, place, shared, x);
  });
}

// Qwen2-MoE has its shared expert in front of the others, and weights it; DeepSeek and GLM-4.5 have
// theirs behind them.
Tensor experts(const LayerRun& run, Layer& layer, const Tensor& input) {
  const MoeSpec& moe = run.job.model.moe;
  const auto routed = [&] {
    return experts_forward(run.graph, layer.experts, input,
                           {.router = run.family.router,
                            .tokens = run.sizes.tokens,
                            .hidden = run.sizes.hidden,
                            .ffn = moe.expert_ffn,
                            .experts = moe.num_experts,
                            .chosen = moe.topk,
                            .is_eager = run.job.profile.eager_experts,
                            .is_gated = run.job.model.gated_ffn,
                            .activation = run.job.model.activation});
  };
  if (!layer.shared_experts.is_defined()) {
    return routed();
  }
  if (!moe.shared_gate && run.family.runs_shared_experts_first) {
    const Tensor shared = feed_forward(run.graph, layer.shared_experts, input, run.uses_liger());
    return eager::add(run.graph, routed(), shared);
  }
  if (!moe.shared_gate) {
    const Tensor output = routed();
    return eager::add(run.graph, output,
                      feed_forward(run.graph, layer.shared_experts, input, run.uses_liger()));
  }
  Tensor shared = feed_forward(run.graph, layer.shared_experts, input, run.uses_liger());
  const Tensor output = routed();
  {
    const Tensor gate = eager::linear(run.graph, input, layer.shared_gate.data,
                                      {.inputs = run.sizes.hidden, .outputs = 1});
    shared = eager::multiply(run.graph, eager::sigmoid(run.graph, gate), shared);
  }
  return eager::add(run.graph, output, shared);
}

Tensor delta_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  const InRow row(run.graph.tape, kRecurrenceRow);
  const Tensor output = delta_net(
      run.graph, layer.delta_net, input,
      {.tokens = run.sizes.tokens, .sequence = run.sizes.sequence, .widths = run.job.model.delta});
  return project(run.graph, layer.delta_net.output, output);
}

Tensor mamba_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  const InRow row(run.graph.tape, kRecurrenceRow);
  const Tensor output = mamba(
      run.graph, layer.mamba, input,
      {.tokens = run.sizes.tokens, .sequence = run.sizes.sequence, .widths = run.job.model.mamba});
  return project(run.graph, layer.mamba.output, output);
}

// What mixes the tokens of a layer.
Tensor mixed(const LayerRun& run, Layer& layer, std::size_t place, const SharedByLayer& shared,
             const Tensor& input) {
  const LayerSpec& spec = run.job.model.layers[place];
  if (spec.mixer == MixerKind::kGatedDelta) {
    return eager::call_module(run.graph, {&layer, "linear_attn", {}}, input,
                              [&](const Tensor& x) { return delta_output(run, layer, x); });
  }
  if (spec.mixer == MixerKind::kMamba2) {
    return eager::call_module(run.graph, {&layer, "mamba", {}}, input,
                              [&](const Tensor& x) { return mamba_output(run, layer, x); });
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

Tensor ffn_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  const InRow row(run.graph.tape, kFfnRow);
  return layer.experts.down.data.is_defined()
             ? experts(run, layer, input)
             : feed_forward(run.graph, layer.ffn, input, run.uses_liger());
}

Tensor ffn(const LayerRun& run, Layer& layer, const Tensor& input) {
  eager::Module module = {&layer, "mlp", {}};
  if (layer.experts.down.data.is_defined()) {
    Experts& experts = layer.experts;
    module.parameters = {&experts.gate_up,      &experts.down,      &experts.router,
                         &experts.gate_up_bias, &experts.down_bias, &experts.router_bias};
    module.is_leaf = true;
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

// Attention and FFN side by side, behind one norm.
Tensor parallel_output(const Parts& parts, const Tensor& input) {
  const Tensor normed = parts.normed(parts.layer.attention_norm, input);
  const Tensor of_attention = parts.mixed(normed);
  const Tensor of_ffn = parts.ffn(normed);
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
