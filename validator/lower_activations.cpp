// What one layer keeps from its forward pass for its backward pass, tensor by tensor.
#include <functional>

#include "validator/lowering.h"

namespace shardplan {
namespace {

using Allocate = std::function<View(const TensorSpec&)>;

bool recomputes(const Lowering& l, bool RecomputeModules::*module) {
  return l.plan.recompute.granularity == RecomputeGranularity::kSelective &&
         l.plan.recompute.modules.*module;
}

// Everything that backward reads of one layer except its input.
LayerActivations all_activations(const Lowering& l, const View& x, const Allocate& allocate) {
  const LocalSizes& s = l.sizes;
  const auto residual = [&](const std::string& name) { return temporary(name, s.rows, s.hidden); };
  LayerActivations a{.x = x};
  a.attention_rstd = allocate(statistics("attention.norm_statistics", s.rows, 1));
  a.attention_normed = allocate(residual("attention.norm_output"));
  a.qkv = allocate(temporary("attention.packed_qkv", s.tokens, s.qkv_width()));
  a.attention_output = allocate(temporary("attention.output", s.tokens, s.query_width()));
  a.log_sum_exp = allocate(statistics("attention.log_sum_exp", s.tokens, s.query_heads));
  a.middle = allocate(residual("ffn.input"));
  a.ffn_rstd = allocate(statistics("ffn.norm_statistics", s.rows, 1));
  a.ffn_normed = allocate(residual("ffn.norm_output"));
  a.gate_up = allocate(temporary("ffn.gate_up", s.tokens, 2 * s.ffn));
  a.activation = allocate(temporary("ffn.activation", s.tokens, s.ffn));
  return a;
}

bool is_dropped(const Lowering& l, const std::string& name) {
  const bool is_norm = name.ends_with("norm_output");
  const bool is_attention = name == "attention.output" || name == "attention.log_sum_exp";
  return (is_norm && recomputes(l, &RecomputeModules::layernorm)) ||
         (is_attention && recomputes(l, &RecomputeModules::core_attn)) ||
         (name == "ffn.activation" && recomputes(l, &RecomputeModules::mlp));
}

}  // namespace

LayerActivations kept_activations(Lowering& l, std::int64_t /*layer*/, const View& x,
                                  std::int64_t slot) {
  return all_activations(l, x, [&](const TensorSpec& spec) {
    return is_dropped(l, spec.name) ? View{} : l.builder.keep(slot, kept(spec));
  });
}

LayerActivations frame_activations(Lowering& l, std::int64_t /*layer*/, const View& x) {
  return all_activations(l, x, [&](const TensorSpec& spec) { return l.builder.push(kept(spec)); });
}

}  // namespace shardplan
