// One mixture-of-experts FFN. The tp ranks of a group divide its tokens among them, with sequence
// parallelism or without. Every rank sends the rows of its tokens straight to where they belong on
// the ranks of their experts, in the order of the experts, so that nothing is sorted or copied
// before or after; the weight of a choice travels with its row and scales the activation, so that
// outputs are only added up and need not be kept. An expert's width is divided over etp ranks,
// which all receive its rows. How many rows there are is known on the device alone; all buffers
// have the size that Plan::moe_buffer_factor bounds them to.
#include "validator/lower/moe.h"

#include "validator/lower/activations.h"
#include "validator/lower/attention.h"
#include "validator/lower/ops.h"
#include "validator/lower/tensor.h"
#include "validator/lower/weights.h"

namespace shardplan {
namespace {

std::int64_t group_size(const Lowering& l, std::int64_t group) {
  return static_cast<std::int64_t>(
      l.program().groups[static_cast<std::size_t>(group)].ranks.size());
}

bool has_shared(const Lowering& l) {
  return l.sizes.shared_ffn > 0;
}

// Rows of the tokens that this rank routes.
View own_rows(const Lowering& l, const View& view) {
  const std::int64_t count = l.sizes.own_rows;
  return view.rows == count ? view : rows_of(view, l.at.tp * count, count);
}

// All rows from every rank's own ones, where a rank holds all of them.
void gather_own_rows(Lowering& l, const View& view, const std::string& label) {
  if (view.rows == l.sizes.own_rows) {
    return;
  }
  emit(l,
       {.kind = OpKind::kAllGather,
        .in = {own_rows(l, view)},
        .out = {view},
        .group = l.groups.tp,
        .stream = Stream::kTensor},
       label);
}

OpAttributes router_attributes(const Lowering& l) {
  OpAttributes attributes = {.first_row = l.at.tp * l.sizes.own_rows,
                             .sequence_rows = div_exact(l.sizes.tokens, l.plan.micro_batch),
                             .chooses_in_turn = l.job.profile.moe_router_force_load_balancing};
  set_positions(l, attributes);
  return attributes;
}

Operation exchange(const Lowering& l, OpKind kind) {
  return {.kind = kind,
          .attributes = {.experts = l.sizes.experts, .copies = l.plan.etp},
          .group = l.groups.experts,
          .stream = Stream::kExperts};
}

// Counts [members * sequences, E] of all ranks that share the experts.
View gathered_counts(Lowering& l, const View& counts) {
  const std::int64_t members = group_size(l, l.groups.experts);
  if (members == 1) {
    return counts;
  }
  const View all = l.builder.push(
      exchanged(statistics("router.gathered_counts", members * counts.rows, counts.cols)));
  emit(l,
       {.kind = OpKind::kAllGather,
        .in = {counts},
        .out = {all},
        .group = l.groups.experts,
        .stream = Stream::kExperts},
       "router.gathered_counts");
  return all;
}

void place_rows(Lowering& l, const ExpertActivations& e, const View& all_counts) {
  emit(l,
       {.kind = OpKind::kExpertRows,
        .in = {e.choices, all_counts},
        .out = {e.rows, e.offsets, l.required_rows},
        .attributes = {.accumulate = accumulates(l, l.required_rows),
                       .experts = l.sizes.experts,
                       .copies = l.plan.etp,
                       .member = l.expert_member,
                       .capacity = l.sizes.received_rows}},
       "router.rows");
}

// Router, and the rows on their way to the experts with the weights [U,n] of the choices.
void route(Lowering& l, const LayerWeights& w, const View& normed, const ExpertActivations& e,
           const View& weights) {
  const FrameScope scope(l.builder);
  const View x = own_rows(l, normed);
  linear(l, e.probabilities, x, w.router, "router");
  emit(l,
       {.kind = OpKind::kRouterForward,
        .in = {e.probabilities},
        .out = {e.probabilities, e.choices, weights, e.counts},
        .attributes = router_attributes(l)},
       "router.choices");
  place_rows(l, e, gathered_counts(l, e.counts));
  Operation dispatch = exchange(l, OpKind::kExpertDispatch);
  dispatch.in = {x, e.choices, e.rows, weights};
  dispatch.out = {e.received, e.weights};
  emit(l, std::move(dispatch), "experts.dispatch");
  if (l.groups.tp_cp >= 0) {  // the other tokens of the sequences
    emit(l,
         {.kind = OpKind::kAllReduce,
          .in = {e.counts},
          .out = {e.counts},
          .group = l.groups.tp_cp,
          .stream = Stream::kTensor},
         "router.counts");
  }
}

void grouped(Lowering& l, const View& y, const View& x, const View& weight, const View& offsets,
             const OpAttributes& attributes, const std::string& label) {
  emit(l,
       {.kind = OpKind::kGroupedGemm,
        .in = {x, weight, offsets},
        .out = {y},
        .attributes = attributes},
       label);
}

void grouped_weight_gradient(Lowering& l, const PlacedWeight& w, const View& dy, const View& x,
                             const View& offsets, const std::string& label) {
  at_weight_gradients(l, [=](Lowering& at) {
    emit(at,
         {.kind = OpKind::kGroupedWeightGradient,
          .in = {dy, x, offsets},
          .out = {w.gradient},
          .attributes = {.accumulate = accumulates(at, w.gradient)}},
         label + ".weight_gradient");
  });
}

void expert_activation(Lowering& l, const LayerWeights& w, const ExpertActivations& e) {
  grouped(l, e.gate_up, e.received, w.expert_gate_up.weight, e.offsets, {.transpose_b = true},
          "experts.gate_up");
  emit(l,
       {.kind = OpKind::kExpertSwigluForward,
        .in = {e.gate_up, e.weights, e.offsets},
        .out = {e.activation}},
       "experts.swiglu");
}

void shared_activation(Lowering& l, const LayerWeights& w, const LayerActivations& a) {
  const FrameScope scope(l.builder);
  const View x = gathered(l, a.ffn_normed, "shared.gathered_input");
  linear(l, a.gate_up, x, w.gate_up, "shared.gate_up");
  emit(l, {.kind = OpKind::kSwigluForward, .in = {a.gate_up}, .out = {a.activation}},
       "shared.swiglu");
}

// The shared experts run while rows are on their way.
void route_beside_shared(Lowering& l, const LayerWeights& w, const LayerActivations& a) {
  const FrameScope scope(l.builder);
  const View weights =
      l.builder.push(statistics("router.weights", l.sizes.own_rows, l.sizes.choices));
  route(l, w, a.ffn_normed, a.experts, weights);
  if (has_shared(l)) {
    shared_activation(l, w, a);
  }
}

// Adds the shared experts' part of dnormed, or rather writes it: they come first.
void shared_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& dx,
                     const View& dnormed) {
  const LocalSizes& s = l.sizes;
  const FrameScope scope(l.builder);
  Operand input{.own = a.ffn_normed, .gathered_name = "shared.gathered_input"};
  View gate_up = a.gate_up;
  if (l.pending == nullptr || !gate_up.present()) {
    input.all = gathered(l, input.own, input.gathered_name, GatheredFor::kWeightGradient);
  }
  if (!gate_up.present()) {
    const PhaseScope replay(l, "replay");
    gate_up = l.builder.push(temporary("shared.gate_up", s.tokens, 2 * s.shared_ffn));
    linear(l, gate_up, input.all, w.gate_up, "shared.gate_up_again");
  }
  const View dgate_up =
      for_weight_gradient(l, temporary("shared.gate_up_gradient", s.tokens, 2 * s.shared_ffn));
  {
    const FrameScope inner(l.builder);
    const View dy = gathered(l, dx, "shared.gathered_gradient");
    View again;
    if (!a.activation.present()) {
      again = for_weight_gradient(l, temporary("shared.activation", s.tokens, s.shared_ffn));
    }
    const View dactivation =
        l.builder.push(temporary("shared.activation_gradient", s.tokens, s.shared_ffn));
    linear_input_gradient(l, dactivation, dy, w.down, "shared.down");
    emit(l,
         {.kind = OpKind::kSwigluBackward, .in = {dactivation, gate_up}, .out = {dgate_up, again}},
         "shared.swiglu");
    weight_gradient(l, w.down, {.own = dx, .all = dy, .gathered_name = "shared.gathered_gradient"},
                    {.own = again.present() ? again : a.activation}, "shared.down");
  }
  write_reduced(l, dnormed, "shared.norm_gradient", [&](const View& partial) {
    linear_input_gradient(l, partial, dgate_up, w.gate_up, "shared.gate_up");
  });
  weight_gradient(l, w.gate_up, {.own = dgate_up}, input, "shared.gate_up");
}

// The gradient of what the experts received, from that of what they returned; the shared experts
// run while it is on its way.
void expert_activation_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a,
                                const View& dx, const View& dnormed, const View& dgate_up,
                                const View& dweights) {
  const LocalSizes& s = l.sizes;
  const ExpertActivations& e = a.experts;
  const FrameScope scope(l.builder);
  const View dy = for_weight_gradient(
      l, exchanged(temporary("experts.output_gradient", s.received_rows, s.hidden)));
  Operation dispatch = exchange(l, OpKind::kExpertDispatch);
  dispatch.in = {own_rows(l, dx), e.choices, e.rows, {}};
  dispatch.out = {dy, {}};
  emit(l, std::move(dispatch), "experts.dispatch_gradient");
  if (has_shared(l)) {
    shared_backward(l, w, a, dx, dnormed);
  }
  View again;
  if (!e.activation.present()) {
    again = for_weight_gradient(l, temporary("experts.activation", s.received_rows, s.expert_ffn));
  }
  const View dactivation =
      l.builder.push(temporary("experts.activation_gradient", s.received_rows, s.expert_ffn));
  grouped(l, dactivation, dy, w.expert_down.weight, e.offsets, {}, "experts.down.input_gradient");
  emit(l,
       {.kind = OpKind::kExpertSwigluBackward,
        .in = {dactivation, e.gate_up, e.weights, e.offsets},
        .out = {dgate_up, dweights, again}},
       "experts.swiglu");
  grouped_weight_gradient(l, w.expert_down, dy, again.present() ? again : e.activation, e.offsets,
                          "experts.down");
}

void router_backward(Lowering& l, const LayerWeights& w, const LayerActivations& a,
                     const View& dweights, const View& dnormed) {
  const LocalSizes& s = l.sizes;
  const ModelSpec& model = l.job.model;
  const FrameScope scope(l.builder);
  const View dlogits =
      for_weight_gradient(l, temporary("router.logit_gradient", s.own_rows, model.moe.num_experts));
  std::int64_t num_moe_layers = 0;
  for (const LayerSpec& layer : model.layers) { num_moe_layers += layer.is_moe ? 1 : 0; }
  const auto length = static_cast<double>(l.job.sequence_length);
  OpAttributes attributes = router_attributes(l);
  // E * sum_e f_e * P_e of one sequence, f_e = count / (length * topk) and P_e = sum / length; the
  // mean over all sequences and layers.
  attributes.value = l.hyperparameters.aux_coefficient *
                     static_cast<double>(model.moe.num_experts) /
                     (length * length * static_cast<double>(s.choices)) /
                     static_cast<double>(num_moe_layers * l.job.global_batch);
  attributes.accumulate = accumulates(l, l.aux_loss);
  emit(l,
       {.kind = OpKind::kRouterBackward,
        .in = {a.experts.probabilities, a.experts.choices, dweights, a.experts.counts},
        .out = {dlogits, l.aux_loss},
        .attributes = attributes},
       "router");
  emit(l,
       {.kind = OpKind::kGemm,
        .in = {dlogits, w.router.weight},
        .out = {dnormed},
        .attributes = {.accumulate = true}},
       "router.input_gradient");
  weight_gradient(l, w.router, {.own = dlogits}, {.own = own_rows(l, a.ffn_normed)}, "router");
}

// What the layer's backward reads, written again where it was not kept.
LayerActivations with_experts_again(Lowering& l, const LayerWeights& w, LayerActivations a) {
  const PhaseScope replay(l, "replay");
  if (!a.ffn_normed.present()) {
    a.ffn_normed =
        for_weight_gradient(l, temporary("ffn.norm_output", l.sizes.rows, l.sizes.hidden));
    rms_norm(l, a.ffn_normed, {}, a.middle, w.ffn_norm, "router.norm");
  }
  if (!a.experts.probabilities.present()) {
    a = with_experts_on_frame(l, a);
    moe_activation(l, w, a);
  }
  return a;
}

}  // namespace

void moe_activation(Lowering& l, const LayerWeights& w, const LayerActivations& a) {
  route_beside_shared(l, w, a);
  expert_activation(l, w, a.experts);
}

void moe_output(Lowering& l, const LayerWeights& w, const LayerActivations& a, const View& y) {
  const LocalSizes& s = l.sizes;
  if (has_shared(l)) {
    write_reduced(l, y, "shared.down", [&](const View& partial) {
      linear(l, partial, a.activation, w.down, "shared.down");
    });
  }
  {
    const FrameScope scope(l.builder);
    const View output =
        l.builder.push(exchanged(temporary("experts.output", s.received_rows, s.hidden)));
    grouped(l, output, a.experts.activation, w.expert_down.weight, a.experts.offsets,
            {.transpose_b = true}, "experts.down");
    Operation combine = exchange(l, OpKind::kExpertCombine);
    combine.in = {output, a.experts.choices, a.experts.rows, {}};
    combine.out = {own_rows(l, y), {}};
    combine.attributes.accumulate = has_shared(l);
    emit(l, std::move(combine), "experts.combine");
  }
  gather_own_rows(l, y, "experts.gathered_output");
}

View moe_backward(Lowering& l, const LayerWeights& w, const LayerActivations& kept,
                  const View& dx) {
  const LocalSizes& s = l.sizes;
  const FrameScope scope(l.builder);
  const View dnormed = l.builder.push(temporary("ffn.norm_gradient", s.rows, s.hidden));
  const View out = next_residual_gradient(l, dx, false);
  {
    const FrameScope inner(l.builder);
    const LayerActivations a = with_experts_again(l, w, kept);
    const ExpertActivations& e = a.experts;
    const View dgate_up = for_weight_gradient(
        l, temporary("experts.gate_up_gradient", s.received_rows, 2 * s.expert_ffn));
    const View drow_weights =
        l.builder.push(exchanged(statistics("experts.weight_gradient", s.received_rows, 1)));
    expert_activation_backward(l, w, a, dx, dnormed, dgate_up, drow_weights);
    const View dinput =
        l.builder.push(exchanged(temporary("experts.input_gradient", s.received_rows, s.hidden)));
    const View dweights =
        l.builder.push(statistics("router.weight_gradient", s.own_rows, s.choices));
    grouped(l, dinput, dgate_up, w.expert_gate_up.weight, e.offsets, {},
            "experts.gate_up.input_gradient");
    Operation combine = exchange(l, OpKind::kExpertCombine);
    combine.in = {dinput, e.choices, e.rows, drow_weights};
    combine.out = {own_rows(l, dnormed), dweights};
    combine.attributes.accumulate = has_shared(l);
    emit(l, std::move(combine), "experts.combine_gradient");
    grouped_weight_gradient(l, w.expert_gate_up, dgate_up, e.received, e.offsets,
                            "experts.gate_up");
    router_backward(l, w, a, dweights, own_rows(l, dnormed));
  }
  gather_own_rows(l, dnormed, "ffn.gathered_norm_gradient");
  rms_norm_backward(l, out, dx, dnormed, kept.middle, kept.ffn_rstd, w.ffn_norm, "ffn.norm");
  return out;
}

}  // namespace shardplan
