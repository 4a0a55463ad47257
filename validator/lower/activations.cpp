// What one layer keeps from its forward pass for its backward pass, tensor by tensor.
#include "validator/lower/activations.h"

#include <functional>

#include "validator/lower/ops.h"
#include "validator/lower/weights.h"

namespace shardplan {
namespace {

using Allocate = std::function<View(const TensorSpec&)>;

bool recomputes(const Lowering& l, bool RecomputeModules::*module) {
  return l.plan.recompute.granularity == RecomputeGranularity::kSelective &&
         l.plan.recompute.modules.*module;
}

TensorSpec indices(std::string name, std::int64_t rows, std::int64_t cols) {
  return {.name = std::move(name), .dtype = DType::kInt32, .rows = rows, .cols = cols};
}

// Writes what backward reads of the experts, and of the shared ones, where it is absent.
void add_experts(const Lowering& l, LayerActivations& a, const Allocate& allocate) {
  const LocalSizes& s = l.sizes;
  ExpertActivations& e = a.experts;
  const auto add = [&](View& view, const TensorSpec& spec) {
    view = view.present() ? view : allocate(spec);
  };
  add(e.probabilities, statistics("router.probabilities", s.own_rows, l.job.model.moe.num_experts));
  add(e.choices, indices("router.choices", s.own_rows, s.choices));
  add(e.rows, indices("router.rows", s.own_rows, s.choices));
  add(e.counts, statistics("router.counts", l.plan.micro_batch, l.job.model.moe.num_experts));
  add(e.offsets, indices("experts.offsets", 1, s.experts + 1));
  add(e.weights, statistics("experts.weights", s.received_rows, 1));
  add(e.received, temporary("experts.received", s.received_rows, s.hidden));
  add(e.gate_up, temporary("experts.gate_up", s.received_rows, 2 * s.expert_ffn));
  add(e.activation, temporary("experts.activation", s.received_rows, s.expert_ffn));
  if (s.shared_ffn > 0) {
    add(a.gate_up, temporary("shared.gate_up", s.tokens, 2 * s.shared_ffn));
    add(a.activation, temporary("shared.activation", s.tokens, s.shared_ffn));
  }
}

// Everything that backward reads of one layer except its input.
LayerActivations all_activations(const Lowering& l, std::int64_t layer, const View& x,
                                 const Allocate& allocate) {
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
  if (l.has_experts(layer)) {
    add_experts(l, a, allocate);
    return a;
  }
  a.gate_up = allocate(temporary("ffn.gate_up", s.tokens, 2 * s.ffn));
  a.activation = allocate(temporary("ffn.activation", s.tokens, s.ffn));
  return a;
}

// What a weight gradient reads of the forward pass.
bool is_product_input(const std::string& name) {
  return name.ends_with("norm_output") || name == "attention.output" ||
         name.ends_with(".activation") || name == "experts.received" || name == "experts.offsets";
}

bool is_dropped(const Lowering& l, const std::string& name) {
  const bool is_norm = name.ends_with("norm_output");
  const bool is_attention = name == "attention.output" || name == "attention.log_sum_exp";
  const bool is_shared = name.starts_with("shared.");
  const bool is_moe = is_shared || name.starts_with("router.") || name.starts_with("experts.");
  return (is_norm && recomputes(l, &RecomputeModules::layernorm)) ||
         (is_moe && recomputes(l, &RecomputeModules::moe)) ||
         (is_shared && recomputes(l, &RecomputeModules::shared_experts)) ||
         (name == "experts.activation" && recomputes(l, &RecomputeModules::moe_act)) ||
         (is_attention && recomputes(l, &RecomputeModules::core_attn)) ||
         (name == "ffn.activation" && recomputes(l, &RecomputeModules::mlp));
}

}  // namespace

LayerActivations kept_activations(Lowering& l, std::int64_t layer, const View& x,
                                  const InFlight& flight) {
  return all_activations(l, layer, x, [&](const TensorSpec& spec) {
    const Slot& slot = is_product_input(spec.name) ? flight.inputs : flight.slot;
    return is_dropped(l, spec.name) ? View{} : l.builder.keep(slot, kept(spec));
  });
}

LayerActivations frame_activations(Lowering& l, std::int64_t layer, const View& x) {
  return all_activations(l, layer, x, [&](const TensorSpec& spec) {
    return is_product_input(spec.name) ? for_weight_gradient(l, kept(spec))
                                       : l.builder.push(kept(spec));
  });
}

LayerActivations with_experts_on_frame(Lowering& l, LayerActivations a) {
  add_experts(l, a, [&](const TensorSpec& spec) {
    return is_product_input(spec.name) ? for_weight_gradient(l, spec) : l.builder.push(spec);
  });
  return a;
}

}  // namespace shardplan
