// Backward of a mixture of experts as the trainer runs it, each operation on its own.
#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kInt64 = 8;
constexpr std::int64_t kInt64OfInt32 = 2;

}  // namespace

// Of index_put_ with accumulation: keys, sorted, and where they were.
void EagerLayer::sort_positions(std::int64_t rows) {
  TapeTensor keys = tape_.make(kInt64 * rows);
  TapeTensor sorted = tape_.make(kInt64 * rows);
  TapeTensor origins = tape_.make(kInt64 * rows);
  sort(rows);
  tape_.free(origins, sorted, keys);
}

// The gradient of the output as the batched product takes it.
TapeTensor EagerLayer::moe_output_gradient() {
  TapeTensor gathered = sizes_.tensor_parallel ? gather(sizes_.joins_batch) : TapeTensor{};
  if (sizes_.moe.scores_rows_first) {
    return gathered;
  }
  const TapeTensor summed = tape_.make(sizes_.moe.summed);
  tape_.free(gathered);
  return summed;
}

// The gradient of their input; that of their output is the layer's own.
TapeTensor EagerLayer::shared_backward(LayerTensors& layer, LayerGradients& weights) {
  const std::int64_t inner = sizes_.moe.shared_inner;
  MoeTensors& m = layer.moe;
  if (inner == 0) {
    return {};
  }
  TapeTensor none;
  TapeTensor of_product =
      product_backward(layer, weights, Weight::kSharedDown, inner, none, {&m.shared_product});
  TapeTensor of_up = tape_.make(inner);
  TapeTensor of_silu = tape_.make(inner);
  tape_.free(of_product, m.shared_up, m.shared_silu);
  TapeTensor sum = product_backward(layer, weights, Weight::kSharedUp, sizes_.gathered, of_up, {});
  if (sizes_.tensor_parallel) {  // every rank of tp has a part of it
    tape_.replace(sum, sizes_.gathered);
  }
  TapeTensor of_gate = tape_.make(inner);
  tape_.free(of_silu, m.shared_gate);
  TapeTensor addend =
      product_backward(layer, weights, Weight::kSharedGate, sizes_.gathered, of_gate, {});
  if (sizes_.tensor_parallel) {
    tape_.replace(addend, sizes_.gathered);
  }
  tape_.free(addend);  // added in place
  return sum;
}

TapeTensor EagerLayer::combine_backward(LayerTensors& layer, TapeTensor& of_output,
                                        TapeTensor& of_weights, TapeTensor& of_shared_input,
                                        LayerGradients& weights) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  TapeTensor of_rows;
  if (s.scores_rows_first) {
    // A sum over several choices gives each the same gradient, which then is copied for all.
    of_rows = tape_.make(s.chosen > s.tokens ? s.all_rows : 0);
    tape_.replace(of_rows, s.rows);
  } else {
    of_rows = tape_.make_product(s.scored_rows);
    of_weights = tape_.make(s.weights);
    tape_.free(of_output, m.scored, m.weights);
    tape_.replace(of_rows, s.all_rows);
    tape_.replace(of_rows, s.rows);
    tape_.free(m.order);
  }
  of_shared_input = shared_backward(layer, weights);
  tape_.free(of_output);
  run(hooks_.enter);
  if (s.exchanges) {
    tape_.replace(of_rows, s.rows);
  }
  tape_.replace(of_rows, s.rows_and_zero);
  TapeTensor slots = tape_.make(kInt64OfInt32 * s.slots);
  TapeTensor of_padded = tape_.make(s.padded_rows);
  tape_.free(slots, of_rows);
  return of_padded;
}

TapeTensor EagerLayer::experts_backward(LayerTensors& layer, TapeTensor& of_output,
                                        LayerGradients& weights) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  if (sizes_.autocast) {
    tape_.replace(of_output, s.expert_input);
  }
  const auto backward = [&](Weight weight, std::int64_t bytes, TapeTensor& gradient,
                            TapeTensor& last_used) {
    ProductCasts& casts = layer.casts[static_cast<std::size_t>(weight)];
    weights.weights[static_cast<std::size_t>(weight)] = tape_.make_product(sizes_.weight(weight));
    const TapeTensor of_input = tape_.make(bytes);
    tape_.free(gradient, casts.weight, casts.input, last_used);
    finish_weight(weights, weight);
    return of_input;
  };
  TapeTensor none;
  TapeTensor of_product = backward(Weight::kDown, s.inner, of_output, layer.product);
  TapeTensor of_up = tape_.make(s.inner);
  TapeTensor of_silu = tape_.make(s.inner);
  tape_.free(layer.silu, layer.up, of_product);
  TapeTensor sum = backward(Weight::kUp, s.expert_input, of_up, none);
  if (sizes_.autocast) {
    tape_.replace(sum, s.padded_rows);
  }
  TapeTensor of_gate = tape_.make(s.inner);
  tape_.free(of_silu, layer.gate);
  TapeTensor addend = backward(Weight::kGate, s.expert_input, of_gate, m.padded);
  if (sizes_.autocast) {
    tape_.replace(addend, s.padded_rows);
  }
  add(sum, addend, true);
  return sum;
}

// The gradient of scored rows to that of rows, and of their scores, which is returned.
TapeTensor EagerLayer::score_rows_backward(LayerTensors& layer, TapeTensor& of_rows) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  tape_.replace(of_rows, s.wide_rows);
  TapeTensor of_wide = tape_.make(s.wide_rows);
  TapeTensor products = tape_.make(s.wide_rows);
  tape_.free(of_rows);
  const TapeTensor of_scores = tape_.make(s.order_weights);
  tape_.free(products, m.wide, m.order_weights);
  of_rows = tape_.make(s.rows);
  tape_.free(of_wide);
  return of_scores;
}

// The gradient of rows to that of tokens: added up by sorting.
TapeTensor EagerLayer::dispatch_backward(LayerTensors& layer, TapeTensor& of_padded,
                                         TapeTensor& of_weights) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  const auto add_rows = [&](std::int64_t bytes, std::int64_t rows, TapeTensor& gradient) {
    const TapeTensor sum = tape_.make(bytes);
    sort_positions(rows);
    tape_.free(gradient);
    return sum;
  };
  TapeTensor of_rows = add_rows(s.rows_and_zero, s.padded, of_padded);
  tape_.free(m.slots);
  if (s.exchanges) {
    tape_.replace(of_rows, s.rows);
  }
  if (s.sums_gradient) {
    tape_.replace(of_rows, s.rows);
  }
  run(hooks_.leave_backward);
  TapeTensor of_scores;
  if (s.scores_rows_first) {
    of_scores = score_rows_backward(layer, of_rows);
  }
  const TapeTensor of_tokens = add_rows(s.stream, s.sent, of_rows);
  tape_.free(m.token_of_row);
  if (s.scores_rows_first) {
    of_weights = add_rows(s.weights, s.sent, of_scores);
    tape_.free(m.order);
  }
  return of_tokens;
}

void EagerLayer::route_backward(LayerTensors& layer, TapeTensor& of_tokens, TapeTensor& of_weights,
                                LayerGradients& weights) {
  const TitanMoe& s = sizes_.moe;
  MoeTensors& m = layer.moe;
  tape_.replace(of_weights, s.weights);  // times the scale
  if (!s.scores_rows_first) {
    TapeTensor of_sum = tape_.make(s.denominators);
    tape_.replace(of_weights, s.weights);  // of the quotient
    tape_.replace(of_weights, s.weights);  // and of the sum
    tape_.free(of_sum, m.chosen, m.denominators);
  }
  TapeTensor of_scores = tape_.make(s.scores);
  tape_.free(of_weights, m.choices);
  tape_.replace(of_scores, s.scores);
  tape_.free(m.probabilities);
  TapeTensor of_logits = tape_.make(s.logits);
  tape_.free(of_scores);
  TapeTensor addend = product_backward(layer, weights, Weight::kRouter,
                                       sizes_.tensor_parallel ? sizes_.gathered : sizes_.sequence,
                                       of_logits, {&layer.ffn_norm, &layer.ffn_gathered});
  add(of_tokens, addend, true);
  finish_weight(weights, Weight::kRouter);
}

void EagerLayer::moe_backward(LayerTensors& layer, TapeTensor& gradient, TapeTensor& of_output,
                              LayerGradients& weights) {
  TapeTensor of_weights;
  TapeTensor of_norm;
  TapeTensor of_padded = combine_backward(layer, of_output, of_weights, of_norm, weights);
  TapeTensor of_rows = experts_backward(layer, of_padded, weights);
  TapeTensor of_tokens = dispatch_backward(layer, of_rows, of_weights);
  if (of_norm.id == 0) {
    of_norm = std::exchange(of_tokens, {});
  }
  tape_.free(of_tokens);
  route_backward(layer, of_norm, of_weights, weights);
  if (sizes_.tensor_parallel) {  // this rank's part of what all have
    tape_.replace(of_norm, sizes_.sequence);
  }
  norm_backward(gradient, of_norm, layer.after_attention, layer.ffn_statistics);
}

}  // namespace shardplan::torchtitan
