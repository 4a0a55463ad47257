// One transformer layer: x + attention(norm(x)), then + ffn(norm(.)), forward and backward; the FFN
// of experts stands in moe.cpp.
// Temporaries are nested scopes of the frame: what lives longer is pushed first.
#include "validator/lower/layer.h"

#include "validator/lower/activations.h"
#include "validator/lower/attention.h"
#include "validator/lower/moe.h"
#include "validator/lower/ops.h"
#include "validator/lower/tensor.h"
#include "validator/lower/weights.h"

namespace shardplan {
namespace {

// Activations that the forward pass does not keep, on the frame until the caller's scope ends. The
// two norm outputs take turns.
LayerActivations with_temporaries(Lowering& l, LayerActivations a) {
  const LocalSizes& s = l.sizes;
  if (!a.attention_normed.present()) {
    const TensorSpec normed = temporary("attention.norm_output", s.rows, s.hidden);
    const Cell cell = l.builder.frame_cell(padded_bytes(normed));
    a.attention_normed = l.builder.place(cell, normed);
    a.ffn_normed = l.builder.place(cell, temporary("ffn.norm_output", s.rows, s.hidden));
  }
  if (!a.attention_output.present()) {
    a.attention_output = l.builder.push(temporary("attention.output", s.tokens, s.query_width()));
    a.log_sum_exp = l.builder.push(statistics("attention.log_sum_exp", s.tokens, s.query_heads));
  }
  if (l.has_experts(l.layer)) {
    return with_experts_on_frame(l, a);
  }
  if (!a.activation.present()) {
    a.activation = l.builder.push(temporary("ffn.activation", s.tokens, s.ffn));
  }
  return a;
}

void attention_half(Lowering& l, const LayerWeights& w, const LayerActivations& a) {
  const FrameScope scope(l.builder);
  const View y = l.builder.push(temporary("attention.projection", l.sizes.rows, l.sizes.hidden));
  rms_norm(l, a.attention_normed, a.attention_rstd, a.x, w.attention_norm, "attention.norm");
  const View x = gathered(l, a.attention_normed, "attention.gathered_input");
  linear_in_pieces(l, a.qkv, x, w.qkv, "attention.qkv");
  rotate_forward(l, a.qkv);
  attention_forward(l, a);
  write_reduced(l, y, "attention.projection", [&](const View& partial) {
    linear_in_pieces(l, partial, a.attention_output, w.projection, "attention.projection");
  });
  add_rows(l, a.middle, a.x, y, "attention.residual");
  rms_norm(l, a.ffn_normed, a.ffn_rstd, a.middle, w.ffn_norm, "ffn.norm");
}

void ffn_activation(Lowering& l, const LayerWeights& w, const LayerActivations& a) {
  const View x = gathered(l, a.ffn_normed, "ffn.gathered_input");
  linear_in_pieces(l, a.gate_up, x, w.gate_up, "ffn.gate_up");
  for (const TokenPiece& piece : token_pieces(l)) {
    const auto part = [&](const View& view) { return rows_of(view, piece.token, piece.tokens); };
    emit(l, {.kind = OpKind::kSwigluForward, .in = {part(a.gate_up)}, .out = {part(a.activation)}},
         "ffn.swiglu");
  }
}

// What norm's output was, unless it is kept.
View normed_again(Lowering& l, const View& normed, const View& x, const PlacedWeight& w,
                  const std::string& label) {
  if (normed.present()) {
    return normed;
  }
  const View again =
      for_weight_gradient(l, temporary(label + "_output", l.sizes.rows, l.sizes.hidden));
  const PhaseScope replay(l, "replay");
  rms_norm(l, again, {}, x, w, label);
  return again;
}

// The gradients of a linear layer behind a norm: of its weight, and through the norm into dx, which
// becomes `out`.
struct NormedLinear {
  PlacedWeight norm;
  PlacedWeight weight;
  View x;
  View rstd;
  View normed;
  View dy;
  std::string name;    // "ffn.gate_up"
  std::string family;  // "ffn"
};

void normed_linear_backward(Lowering& l, const NormedLinear& n, const View& dnormed, const View& dx,
                            const View& out) {
  {
    const FrameScope scope(l.builder);
    const std::string gathered_input = n.family + ".gathered_input";
    Operand input{.own = normed_again(l, n.normed, n.x, n.norm, n.family + ".norm"),
                  .gathered_name = gathered_input};
    if (l.pending == nullptr) {
      input.all = gathered(l, input.own, gathered_input, GatheredFor::kWeightGradient);
    }
    write_reduced(l, dnormed, n.family + ".norm_gradient", [&](const View& partial) {
      input_gradient_in_pieces(l, partial, n.dy, n.weight, n.name);
    });
    weight_gradient(l, n.weight, {.own = n.dy}, input, n.name);
  }
  rms_norm_backward(l, out, dx, dnormed, n.x, n.rstd, n.norm, n.family + ".norm");
}

View ffn_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& dx) {
  const LocalSizes& s = l.sizes;
  const FrameScope scope(l.builder);
  const View dnormed = l.builder.push(temporary("ffn.norm_gradient", s.rows, s.hidden));
  const View dgate_up =
      for_weight_gradient(l, temporary("ffn.gate_up_gradient", s.tokens, 2 * s.ffn));
  const View out = next_residual_gradient(l, dx, false);
  {
    const FrameScope inner(l.builder);
    const View dy = gathered(l, dx, "ffn.gathered_gradient");
    View again;
    if (!a.activation.present()) {
      again = for_weight_gradient(l, temporary("ffn.activation", s.tokens, s.ffn));
    }
    const View dactivation = l.builder.push(temporary("ffn.activation_gradient", s.tokens, s.ffn));
    input_gradient_in_pieces(l, dactivation, dy, w.down, "ffn.down");
    for (const TokenPiece& piece : token_pieces(l)) {
      const auto part = [&](const View& view) {
        return view.present() ? rows_of(view, piece.token, piece.tokens) : view;
      };
      emit(l,
           {.kind = OpKind::kSwigluBackward,
            .in = {part(dactivation), part(a.gate_up)},
            .out = {part(dgate_up), part(again)}},
           "ffn.swiglu");
    }
    weight_gradient(l, w.down, {.own = dx, .all = dy, .gathered_name = "ffn.gathered_gradient"},
                    {.own = again.present() ? again : a.activation}, "ffn.down");
  }
  normed_linear_backward(l,
                         {.norm = w.ffn_norm,
                          .weight = w.gate_up,
                          .x = a.middle,
                          .rstd = a.ffn_rstd,
                          .normed = a.ffn_normed,
                          .dy = dgate_up,
                          .name = "ffn.gate_up",
                          .family = "ffn"},
                         dnormed, dx, out);
  return out;
}

// Writes attention's output and its statistics again where they are not kept.
LayerActivations with_attention_output(Lowering& l, LayerActivations a) {
  if (!a.attention_output.present()) {
    const LocalSizes& s = l.sizes;
    a.attention_output =
        for_weight_gradient(l, temporary("attention.output", s.tokens, s.query_width()));
    a.log_sum_exp = l.builder.push(statistics("attention.log_sum_exp", s.tokens, s.query_heads));
    const PhaseScope replay(l, "replay");
    attention_forward(l, a);
  }
  return a;
}

View attention_half_backward(Lowering& l, const LayerWeights& w, const LayerActivations& kept,
                             const View& dx) {
  const LocalSizes& s = l.sizes;
  const FrameScope scope(l.builder);
  const View dnormed = l.builder.push(temporary("attention.norm_gradient", s.rows, s.hidden));
  const View dqkv =
      for_weight_gradient(l, temporary("attention.qkv_gradient", s.tokens, s.qkv_width()));
  const View out = next_residual_gradient(l, dx, true);
  {
    const FrameScope inner(l.builder);
    const View dy = gathered(l, dx, "attention.gathered_gradient");
    const LayerActivations a = with_attention_output(l, kept);
    const View dout =
        l.builder.push(temporary("attention.output_gradient", s.tokens, s.query_width()));
    input_gradient_in_pieces(l, dout, dy, w.projection, "attention.projection");
    weight_gradient(l, w.projection,
                    {.own = dx, .all = dy, .gathered_name = "attention.gathered_gradient"},
                    {.own = a.attention_output}, "attention.projection");
    attention_backward(l, dqkv, dout, a);
  }
  rotate_backward(l, dqkv);
  normed_linear_backward(l,
                         {.norm = w.attention_norm,
                          .weight = w.qkv,
                          .x = kept.x,
                          .rstd = kept.attention_rstd,
                          .normed = kept.attention_normed,
                          .dy = dqkv,
                          .name = "attention.qkv",
                          .family = "attention"},
                         dnormed, dx, out);
  return out;
}

}  // namespace

void layer_forward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& out) {
  l.layer = w.layer;
  const FrameScope scope(l.builder);
  const LayerActivations all = with_temporaries(l, a);
  attention_half(l, w, all);
  const bool has_experts = l.has_experts(w.layer);
  has_experts ? moe_activation(l, w, all) : ffn_activation(l, w, all);
  const View y = l.builder.push(temporary("ffn.down", l.sizes.rows, l.sizes.hidden));
  if (has_experts) {
    moe_output(l, w, all, y);
  } else {
    write_reduced(l, y, "ffn.down", [&](const View& partial) {
      linear_in_pieces(l, partial, all.activation, w.down, "ffn.down");
    });
  }
  add_rows(l, out, all.middle, y, "ffn.residual");
}

void layer_replay(Lowering& l, const LayerWeights& w, const LayerActivations& a) {
  l.layer = w.layer;
  attention_half(l, w, a);
  l.has_experts(w.layer) ? moe_activation(l, w, a) : ffn_activation(l, w, a);
}

View layer_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& dx) {
  l.layer = w.layer;
  const View middle =
      l.has_experts(w.layer) ? moe_backward(l, w, a, dx) : ffn_backward(l, w, a, dx);
  return attention_half_backward(l, w, a, middle);
}

}  // namespace shardplan
