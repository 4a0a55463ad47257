// models/llama3/model/model.py (TransformerBlock, Attention, apply_rotary_emb, FeedForward), each
// operation on its own.
#include "estimator/frameworks/torchtitan/layer.h"
#include "estimator/frameworks/torchtitan/ring.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16

bool saves_ops(LayerPass pass) {
  return pass == LayerPass::kSavesOps;
}
bool is_replay(LayerPass pass) {
  return pass == LayerPass::kReplay || pass == LayerPass::kReplayOps;
}

ProductCasts& casts_of(LayerTensors& layer, Weight weight) {
  return layer.casts[static_cast<std::size_t>(weight)];
}

}  // namespace

// All-gather of a sequence along tp; samples are joined by one more copy.
TapeTensor EagerLayer::gather(bool joins) {
  TapeTensor gathered = tape_.make(sizes_.gathered);
  if (joins) {
    tape_.replace(gathered, sizes_.gathered);
  }
  return gathered;
}

// Reduce-scatter along tp: its input is copied together first.
TapeTensor EagerLayer::reduce(bool is_saved) {
  TapeTensor input = tape_.make(sizes_.gathered);
  const TapeTensor reduced = is_saved ? TapeTensor{} : tape_.make(sizes_.sequence);
  tape_.free(input);
  return reduced;
}

// A product whose output is saved only casts its operands when it is replayed.
TapeTensor EagerLayer::product(LayerTensors& layer, Weight weight, std::int64_t bytes,
                               LayerPass pass, bool computes) {
  ProductCasts& casts = casts_of(layer, weight);
  const bool casts_input = weight != Weight::kOutput && weight != Weight::kDown;
  if (sizes_.autocast) {
    casts.weight = tape_.make(sizes_.weight(weight));
    casts.input = casts_input ? tape_.make(sizes_.sequence) : TapeTensor{};
  }
  const TapeTensor output = computes ? tape_.make_product(bytes) : TapeTensor{};
  if (!graph_saves(pass)) {
    tape_.free(casts.input);
    tape_.autocast_cache.push_back(std::exchange(casts.weight, {}));
  }
  return output;
}

void EagerLayer::rotate(LayerTensors& layer, LayerPass pass) {
  if (sizes_.norms_query_key) {
    rotate_halves(layer, pass);
    return;
  }
  TapeTensor query = tape_.make(kWiden * sizes_.query);
  TapeTensor key = tape_.make(kWiden * sizes_.key);
  layer.angles = tape_.make(sizes_.cp > 1 ? sizes_.angles : 0);
  TapeTensor turned_query = tape_.make(kWiden * sizes_.query);
  TapeTensor turned_key = tape_.make(kWiden * sizes_.key);
  layer.rotated_query = tape_.make(sizes_.query);
  layer.rotated_key = tape_.make(sizes_.key);
  if (!graph_saves(pass)) {
    tape_.free(layer.angles);
  }
  tape_.free(query, key, turned_query, turned_key);
  if (!saves_ops(pass)) {
    tape_.free(layer.query);
  }
  tape_.free(layer.key);
}

void EagerLayer::attend(LayerTensors& layer, LayerPass pass) {
  if (pass == LayerPass::kReplayOps) {
    return;
  }
  if (sizes_.cp > 1) {
    play_ring_forward(tape_, sizes_, layer);
  } else {
    layer.output = tape_.make(sizes_.query);
    layer.log_sum_exp = tape_.make(sizes_.log_sum_exp);
  }
  if (pass == LayerPass::kSavesNothing) {
    tape_.free(layer.log_sum_exp);
  }
}

void EagerLayer::attention(LayerTensors& layer, LayerPass pass) {
  const bool replays_ops = pass == LayerPass::kReplayOps;
  layer.norm = tape_.make(sizes_.residual);
  layer.norm_statistics = tape_.make(sizes_.statistics);
  if (!graph_saves(pass)) {
    tape_.free(layer.norm_statistics);
  }
  if (sizes_.mla.exists) {
    latent_attention(layer, pass);
    return;
  }
  if (sizes_.tensor_parallel) {
    layer.gathered = gather(sizes_.joins_batch);
  }
  const TapeTensor query = product(layer, Weight::kQuery, sizes_.query, pass, !replays_ops);
  layer.query = replays_ops ? layer.query : query;
  layer.key = product(layer, Weight::kKey, sizes_.key, pass);
  const TapeTensor value = product(layer, Weight::kValue, sizes_.key, pass, !replays_ops);
  layer.value = replays_ops ? layer.value : value;
  rotate(layer, pass);
  attend(layer, pass);
  layer.output_copy = tape_.make(sizes_.cp > 1 ? sizes_.query : 0);
  if (pass == LayerPass::kSavesNothing && sizes_.cp > 1) {
    tape_.free(layer.output);
  }
  TapeTensor projected = product(layer, Weight::kOutput, sizes_.gathered, pass);
  TapeTensor reduced;
  if (sizes_.tensor_parallel) {
    reduced = reduce(replays_ops);
    tape_.free(projected);
    std::swap(projected, reduced);
    projected = replays_ops ? std::exchange(layer.reduced_output, {}) : projected;
  }
  if (!graph_saves(pass)) {
    tape_.free(layer.rotated_query, layer.rotated_key, layer.output_copy, layer.gathered);
  }
  if (pass == LayerPass::kSavesNothing) {
    tape_.free(layer.value, layer.output);
  }
  if (!graph_saves(pass) || sizes_.tensor_parallel || sizes_.autocast) {
    tape_.free(layer.norm);
  }
  layer.after_attention = tape_.make(sizes_.residual);
  if (saves_ops(pass) && sizes_.tensor_parallel) {
    layer.reduced_output = std::exchange(projected, {});
  }
  tape_.free(projected);
}

void EagerLayer::feed_forward(LayerTensors& layer, LayerPass pass) {
  const bool replays_ops = pass == LayerPass::kReplayOps;
  layer.ffn_norm = tape_.make(sizes_.residual);
  layer.ffn_statistics = tape_.make(sizes_.statistics);
  if (!graph_saves(pass)) {
    tape_.free(layer.ffn_statistics);
  }
  if (sizes_.tensor_parallel) {
    layer.ffn_gathered = gather(sizes_.joins_batch);
  }
  if (sizes_.moe.exists) {
    moe(layer, pass);
    end_feed_forward(layer, pass);
    return;
  }
  const auto multiply = [&](Weight weight, std::int64_t bytes, TapeTensor& output) {
    const bool is_there = replays_ops && sizes_.saves_product(weight);
    const TapeTensor computed = product(layer, weight, bytes, pass, !is_there);
    output = is_there ? output : computed;
  };
  multiply(Weight::kGate, sizes_.ffn, layer.gate);
  layer.silu = tape_.make(sizes_.ffn);
  if (!keeps(Weight::kGate, pass)) {
    tape_.free(layer.gate);
  }
  multiply(Weight::kUp, sizes_.ffn, layer.up);
  layer.product = tape_.make(sizes_.ffn);
  if (!graph_saves(pass)) {
    tape_.free(layer.silu);
  }
  if (!keeps(Weight::kUp, pass)) {
    tape_.free(layer.up);
  }
  multiply(Weight::kDown, sizes_.gathered, layer.down);
  if (sizes_.tensor_parallel) {
    const TapeTensor reduced = reduce(replays_ops);
    layer.reduced_down = replays_ops ? layer.reduced_down : reduced;
    if (!saves_ops(pass)) {
      tape_.free(layer.down);
    }
  }
  if (!graph_saves(pass)) {
    tape_.free(layer.product);
  }
  end_feed_forward(layer, pass);
}

void EagerLayer::end_feed_forward(LayerTensors& layer, LayerPass pass) {
  if (!graph_saves(pass)) {
    tape_.free(layer.ffn_gathered);
  }
  if (!graph_saves(pass) || sizes_.tensor_parallel || sizes_.autocast) {
    tape_.free(layer.ffn_norm);
  }
}

TapeTensor EagerLayer::forward(LayerTensors& layer, LayerPass pass) {
  attention(layer, pass);
  feed_forward(layer, pass);
  TapeTensor output = tape_.make(sizes_.residual);
  if (sizes_.moe.exists) {
    tape_.free(layer.down);
  }
  if (!saves_ops(pass) || !(sizes_.saves_product(Weight::kDown) || sizes_.moe.is_biased)) {
    tape_.free(layer.down, layer.reduced_down);
  }
  if (!graph_saves(pass)) {
    tape_.free(layer.after_attention);
  }
  if (is_replay(pass)) {
    tape_.free(output);
  }
  return output;
}

// Autograd adds in place where nothing else holds the sum so far.
void EagerLayer::add(TapeTensor& sum, TapeTensor& addend, bool in_place) {
  if (!in_place) {
    tape_.replace(sum, addend.bytes);
  }
  tape_.free(addend);
}

// Autocast casts a weight's gradient to fp32, the parameter's own.
void EagerLayer::finish_weight(LayerGradients& weights, Weight weight) {
  if (!sizes_.autocast) {
    return;
  }
  TapeTensor& gradient = weights.weights[static_cast<std::size_t>(weight)];
  tape_.replace(gradient, kWiden * sizes_.weight(weight));
  if (weights.accumulates) {
    tape_.free(gradient);
  }
}

TapeTensor EagerLayer::product_backward(LayerTensors& layer, LayerGradients& weights, Weight weight,
                                        std::int64_t input_bytes, TapeTensor& gradient,
                                        std::initializer_list<TapeTensor*> last_used) {
  TapeTensor& of_weight = weights.weights[static_cast<std::size_t>(weight)];
  of_weight = tape_.make_product(sizes_.weight(weight));
  TapeTensor of_input = tape_.make(input_bytes);
  ProductCasts& casts = casts_of(layer, weight);
  const bool casts_input = casts.input.id != 0;
  tape_.free(gradient, casts.weight, casts.input);
  for (TapeTensor* tensor : last_used) { tape_.free(*tensor); }
  if (casts_input) {
    tape_.replace(of_input, kWiden * input_bytes);
  }
  return of_input;
}

// The gradient of the residual stream as the output of the layer's last product sees it.
TapeTensor EagerLayer::projection_gradient() {
  if (sizes_.autocast) {
    return tape_.make(sizes_.sequence);
  }
  return sizes_.tensor_parallel ? gather(sizes_.joins_batch) : TapeTensor{};
}

TapeTensor EagerLayer::reduce_gradient(TapeTensor& sum) {
  if (!sizes_.tensor_parallel) {
    return std::exchange(sum, {});
  }
  const TapeTensor reduced = reduce(false);
  tape_.free(sum);
  return reduced;
}

void EagerLayer::norm_backward(TapeTensor& gradient, TapeTensor& of_output, TapeTensor& input,
                               TapeTensor& statistics) {
  TapeTensor of_input = tape_.make(sizes_.residual);
  tape_.free(of_output, input, statistics);
  add(gradient, of_input, gradient.id != 0);
}

void EagerLayer::feed_forward_backward(LayerTensors& layer, TapeTensor& gradient,
                                       TapeTensor& of_output, LayerGradients& weights) {
  TapeTensor of_product =
      product_backward(layer, weights, Weight::kDown, sizes_.ffn, of_output, {&layer.product});
  finish_weight(weights, Weight::kDown);
  TapeTensor of_up = tape_.make(sizes_.ffn);
  TapeTensor of_silu = tape_.make(sizes_.ffn);
  tape_.free(layer.silu, layer.up, of_product);
  TapeTensor sum = product_backward(layer, weights, Weight::kUp, sizes_.gathered, of_up, {});
  finish_weight(weights, Weight::kUp);
  TapeTensor of_gate = tape_.make(sizes_.ffn);
  tape_.free(of_silu, layer.gate);
  TapeTensor addend = product_backward(layer, weights, Weight::kGate, sizes_.gathered, of_gate,
                                       {&layer.ffn_norm, &layer.ffn_gathered});
  add(sum, addend, sizes_.autocast);
  finish_weight(weights, Weight::kGate);
  TapeTensor of_norm = reduce_gradient(sum);
  norm_backward(gradient, of_norm, layer.after_attention, layer.ffn_statistics);
}

void EagerLayer::rotate_backward(LayerTensors& layer, TapeTensor& query, TapeTensor& key) {
  if (sizes_.norms_query_key) {
    rotate_halves_backward(layer, query, key);
    return;
  }
  // Gradients of the ring lie in other strides than complex numbers need.
  const auto turn = [&](TapeTensor& wide) {
    if (sizes_.cp > 1) {
      tape_.replace(wide, wide.bytes);
    }
    TapeTensor conjugate = tape_.make(sizes_.angle_gradient);
    const TapeTensor turned = tape_.make(wide.bytes);
    tape_.free(conjugate, wide);
    wide = turned;
  };
  TapeTensor wide_key = tape_.make(kWiden * sizes_.key);
  if (sizes_.cp == 1) {
    tape_.free(key);
  }
  TapeTensor wide_query = tape_.make(kWiden * sizes_.query);
  tape_.free(query);
  turn(wide_key);
  turn(wide_query);
  tape_.free(layer.angles);
  layer.rotated_key = tape_.make(sizes_.key);
  tape_.free(wide_key);
  layer.rotated_query = tape_.make(sizes_.query);
  tape_.free(wide_query);
}

void EagerLayer::attention_backward(LayerTensors& layer, TapeTensor& gradient,
                                    LayerGradients& weights) {
  if (sizes_.mla.exists) {
    latent_attention_backward(layer, gradient, weights);
    return;
  }
  TapeTensor of_projection = projection_gradient();
  TapeTensor of_output = product_backward(layer, weights, Weight::kOutput, sizes_.query,
                                          of_projection, {&layer.output_copy});
  finish_weight(weights, Weight::kOutput);
  TapeTensor of_query;
  TapeTensor of_key;
  TapeTensor of_value;
  if (sizes_.cp > 1) {
    RingGradients ring = play_ring_backward(tape_, sizes_);
    of_query = ring.query;
    of_key = ring.key_value;
  } else {
    of_query = tape_.make(sizes_.query);
    of_key = tape_.make(sizes_.key);
    of_value = tape_.make(sizes_.key);
    TapeTensor workspace = tape_.make(sizes_.workspace);
    tape_.free(workspace);
  }
  tape_.free(of_output, layer.rotated_query, layer.rotated_key, layer.value, layer.output,
             layer.log_sum_exp);
  rotate_backward(layer, of_query, of_key);
  if (sizes_.cp > 1) {
    of_value = tape_.make(sizes_.key);
    tape_.free(of_key);
  }
  TapeTensor sum = product_backward(layer, weights, Weight::kValue, sizes_.gathered, of_value, {});
  finish_weight(weights, Weight::kValue);
  TapeTensor addend =
      product_backward(layer, weights, Weight::kKey, sizes_.gathered, layer.rotated_key, {});
  add(sum, addend, sizes_.autocast);
  finish_weight(weights, Weight::kKey);
  addend = product_backward(layer, weights, Weight::kQuery, sizes_.gathered, layer.rotated_query,
                            {&layer.norm, &layer.gathered});
  add(sum, addend, !sizes_.tensor_parallel);
  finish_weight(weights, Weight::kQuery);
  TapeTensor of_norm = reduce_gradient(sum);
  norm_backward(gradient, of_norm, layer.input, layer.norm_statistics);
}

void EagerLayer::backward(LayerTensors& layer, TapeTensor& gradient, LayerGradients& weights,
                          LayerPass replay) {
  const bool has_experts = sizes_.moe.exists;
  TapeTensor of_output = has_experts ? moe_output_gradient() : projection_gradient();
  if (is_replay(replay)) {
    forward(layer, replay);
  }
  if (has_experts) {
    moe_backward(layer, gradient, of_output, weights);
  } else {
    feed_forward_backward(layer, gradient, of_output, weights);
  }
  attention_backward(layer, gradient, weights);
}

}  // namespace shardplan::torchtitan
