#include "estimator/frameworks/pieces/huggingface/layer.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/checkpoint.h"
#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"

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
  }
  return {};
}

}  // namespace

Tensor apply_norm(const LayerRun& run, Norm& norm, const Tensor& input, bool is_of_heads) {
  return eager::call_module(
      run.graph, {&norm, "norm", {&norm.weight}}, input,
      [&](const Tensor& x) { return norm_output(run, norm, x, is_of_heads); });
}

namespace {

bool has_rotary(const LayerRun& run, std::size_t place) {
  const auto interval = static_cast<std::size_t>(run.family.plain_layer_interval);
  return interval == 0 || (place + 1) % interval != 0;
}

bool takes_liger_rotary(const LayerRun& run) {
  return run.uses_liger() && run.family.liger != LigerUse::kNoRotary;
}

// Queries that were put together have their heads in front of tokens, and so has the output of
// the fused kernels.
bool lays_out_heads(const LayerRun& run, std::size_t place) {
  const bool is_eager = run.job.profile.attention_backend == AttentionBackend::kUnfused;
  return !is_eager && has_rotary(run, place) && !takes_liger_rotary(run) &&
         run.family.rotary != RotaryKind::kHalves;
}

void turn(const LayerRun& run, std::size_t place, const Rotary& rotary, Heads& heads) {
  if (!has_rotary(run, place)) {
    return;
  }
  const auto turned = [&](const Tensor& input) {
    if (takes_liger_rotary(run)) {  // of contiguous rows
      const Tensor rows = run.family.has_one_qkv ? eager::laid_out(run.graph, input) : input;
      return eager::liger_rotate(run.graph, rows, rotary.cosines, rotary.sines);
    }
    const std::int64_t part = input.elements / run.sizes.head_dim * rotary_width(run.job.model);
    return rotate(run.graph, run.family.rotary, input, part, rotary);
  };
  Tensor query = turned(heads.query);
  heads.key = turned(heads.key);
  heads.query = std::move(query);
}

Heads projected_heads(const LayerRun& run, Layer& layer, const Tensor& input) {
  if (run.family.has_one_qkv) {
    const Tensor all = project(run.graph, layer.query_key_value, input);
    const std::int64_t of_head = run.sizes.tokens * run.sizes.head_dim;
    const auto part = [&](std::int64_t heads) {
      return eager::copied_back(run.graph, eager::slice(run.graph, all, of_head * heads));
    };
    return {.query = part(run.sizes.query_heads),
            .key = part(run.sizes.key_heads),
            .value = eager::slice(run.graph, all, of_head * run.sizes.key_heads)};
  }
  const auto project_heads = [&](Linear& linear) {
    return eager::copied_back(run.graph, project(run.graph, linear, input));
  };
  const auto norm_heads = [&](Norm& head_norm, Tensor& heads) {
    if (run.job.model.qk_norm) {
      heads = apply_norm(run, head_norm, heads, true);
    }
  };
  Heads heads;
  heads.query = project_heads(layer.query);
  if (!run.family.norms_heads_last) {
    norm_heads(layer.query_norm, heads.query);
  }
  heads.key = project_heads(layer.key);
  if (!run.family.norms_heads_last) {
    norm_heads(layer.key_norm, heads.key);
  }
  heads.value = project(run.graph, layer.value, input);
  if (run.family.norms_heads_last) {
    norm_heads(layer.query_norm, heads.query);
    norm_heads(layer.key_norm, heads.key);
  }
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
  Heads heads = projected_heads(run, layer, input);
  turn(run, place, rotary, heads);
  return heads;
}

Tensor attention_output(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                        const Tensor& input) {
  const InRow row(run.graph.tape, kAttentionRow);
  const auto& [query, key, value] = heads_of(run, layer, place, shared.rotary, input);
  const AttentionSizes sizes = run.attention_sizes();
  const bool is_eager = run.job.profile.attention_backend == AttentionBackend::kUnfused;
  const Tensor output = is_eager
                            ? eager_attention(run.graph, query, key, value, shared.mask, sizes)
                            : scaled_dot_product(run.graph, query, key, value, shared.mask, sizes);
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
                            .is_eager = run.job.profile.eager_experts});
  };
  if (!layer.shared_experts.is_defined()) {
    return routed();
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

Tensor ffn_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  const InRow row(run.graph.tape, kFfnRow);
  return layer.experts.down.data.is_defined()
             ? experts(run, layer, input)
             : feed_forward(run.graph, layer.ffn, input, run.uses_liger());
}

Tensor ffn(const LayerRun& run, Layer& layer, const Tensor& input) {
  eager::Module module = {&layer, "mlp", {}};
  if (layer.experts.down.data.is_defined()) {
    module.parameters = {&layer.experts.gate_up, &layer.experts.down, &layer.experts.router};
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

Tensor layer_output(const LayerRun& run, Layer& layer, std::size_t place,
                    const SharedByLayer& shared, const Tensor& input) {
  const InRow row(run.graph.tape, kResidualRow);
  const bool has_four_norms = run.job.model.norms_per_layer > 2;
  const auto norm = [&run](Norm& each, const Tensor& of) {
    return part(run, of, [&run, &each](const Tensor& x) { return apply_norm(run, each, x); });
  };
  const Shared& of_kind = shared.of(run.job.model.layers[place]);
  Tensor hidden = norm(layer.attention_norm, input);
  hidden = part(run, hidden, [&run, &layer, place, &of_kind](const Tensor& x) {
    return attention(run, layer, place, of_kind, x);
  });
  if (has_four_norms) {
    hidden = norm(layer.after_attention, hidden);
  }
  hidden = added(run, input, hidden);
  const Tensor residual = hidden;
  hidden = norm(layer.ffn_norm, hidden);
  hidden = part(run, hidden, [&run, &layer](const Tensor& x) { return ffn(run, layer, x); });
  if (has_four_norms) {
    hidden = norm(layer.after_ffn, hidden);
  }
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
