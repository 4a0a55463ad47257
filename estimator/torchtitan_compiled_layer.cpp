#include "estimator/torchtitan_compiled_layer.h"

namespace shardplan {
namespace {

constexpr std::int64_t kWiden = 2;     // fp32 for bf16
constexpr std::int64_t kKeyValue = 2;  // keys and values in one tensor
constexpr std::int64_t kHalf = 2;      // half the queries from the second round of a ring on

bool saves_all(LayerPass pass) {
  return pass == LayerPass::kSaves;
}
bool saves_nothing(LayerPass pass) {
  return pass == LayerPass::kSavesNothing;
}

}  // namespace

TapeTensor CompiledLayer::gather() {
  TapeTensor gathered = tape_.make(sizes_.gathered);
  if (sizes_.joins_batch) {
    tape_.replace(gathered, sizes_.gathered);
  }
  return gathered;
}

// Reduce-scatter of partial sums, copied together first.
TapeTensor CompiledLayer::reduce(TapeTensor& partial) {
  TapeTensor input = tape_.make(sizes_.gathered);
  tape_.free(partial);
  const TapeTensor reduced = tape_.make(sizes_.sequence);
  tape_.free(input);
  return reduced;
}

TapeTensor CompiledLayer::product(LayerTensors& layer, Weight weight, std::int64_t bytes,
                                  LayerPass pass) {
  TapeTensor& cast = layer.casts[static_cast<std::size_t>(weight)].weight;
  cast = tape_.make(sizes_.autocast ? sizes_.weight(weight) : 0);
  const TapeTensor output = tape_.make_product(bytes);
  if (!saves_all(pass)) {
    tape_.free(cast);
  }
  return output;
}

void CompiledLayer::project(LayerTensors& layer, LayerPass pass) {
  layer.norm_statistics = tape_.make(saves_all(pass) ? sizes_.statistics : 0);
  layer.norm = tape_.make(sizes_.sequence);
  if (sizes_.tensor_parallel) {
    layer.gathered = gather();
    tape_.free(layer.norm);
  }
  layer.query = product(layer, Weight::kQuery, sizes_.query, pass);
  layer.key = product(layer, Weight::kKey, sizes_.key, pass);
  layer.value = product(layer, Weight::kValue, sizes_.key, pass);
}

// Rotated queries and keys lie where the products wrote theirs; where a product is saved, in the
// buffer of the norm.
void CompiledLayer::rotate(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  if (saves_nothing(pass)) {
    tape_.free(layer.norm);
  } else if (!saves_all(pass)) {
    left.norm = sizes_.tensor_parallel ? TapeTensor{} : std::exchange(layer.norm, {});
  }
  TapeTensor query = tape_.make(kWiden * sizes_.query);
  TapeTensor key = tape_.make(kWiden * sizes_.key);
  layer.angles = tape_.make(sizes_.cp > 1 ? sizes_.angles : 0);
  left.turned = tape_.make(kWiden * sizes_.query);
  tape_.free(query);
  TapeTensor turned_key = tape_.make(kWiden * sizes_.key);
  if (!saves_all(pass)) {
    tape_.free(layer.angles);
  }
  tape_.free(key);
  if (!saves_all(pass) && !saves_nothing(pass) && left.norm.id == 0) {
    left.norm = tape_.make(sizes_.query);
  }
  if (sizes_.cp == 1 || saves_all(pass)) {
    tape_.free(left.turned);
  }
  tape_.free(turned_key);
}

void CompiledLayer::attend(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  if (sizes_.cp > 1) {
    attend_ring(layer, pass, left);
    return;
  }
  layer.output = tape_.make(sizes_.query);
  layer.log_sum_exp = tape_.make(sizes_.log_sum_exp);
  if (saves_nothing(pass)) {
    tape_.free(layer.key, layer.value, layer.log_sum_exp);
  } else if (!saves_all(pass)) {
    tape_.free(layer.key);
  }
}

// Every round's output, merged by one kernel; keys and values of all ranks stay for backward.
void CompiledLayer::attend_ring(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  if (!saves_nothing(pass)) {
    const TapeTensor value = tape_.make(sizes_.key);
    tape_.free(layer.value);
    layer.value = value;
  }
  TapeTensor joined = tape_.make(kKeyValue * sizes_.key);
  layer.gathered_key_values = tape_.make(sizes_.cp * kKeyValue * sizes_.key);
  tape_.free(joined);
  left.stream = tape_.make(sizes_.query);
  TapeTensor merged_lse = tape_.make(sizes_.log_sum_exp);
  TapeTensor half = tape_.make(saves_all(pass) ? 0 : sizes_.query / kHalf);
  tape_.free(left.turned);
  if (saves_nothing(pass)) {
    tape_.free(layer.key, layer.value);
  }
  for (std::int64_t round = 1; round < sizes_.cp; ++round) {
    TapeTensor output = tape_.make(sizes_.query / kHalf);
    TapeTensor log_sum_exp = tape_.make(sizes_.log_sum_exp / kHalf);
    if (round + 1 == sizes_.cp) {
      tape_.free(half);
    }
    const TapeTensor next_lse = tape_.make(saves_nothing(pass) ? 0 : sizes_.log_sum_exp);
    if (round + 1 == sizes_.cp && !saves_nothing(pass)) {
      layer.log_sum_exp = next_lse;
    }
    if (round + 1 < sizes_.cp) {
      tape_.free(merged_lse);
      merged_lse = next_lse;
    } else if (saves_all(pass)) {
      layer.output = tape_.make(sizes_.query);
      layer.output_copy = tape_.make(sizes_.query);
    } else if (!saves_nothing(pass)) {
      layer.output = tape_.write_over(left.norm, sizes_.query);
      left.norm = tape_.make(sizes_.query);
    }
    if (round + 1 == sizes_.cp) {
      tape_.free(merged_lse);
      if (saves_nothing(pass)) {
        tape_.free(layer.gathered_key_values);
      }
    }
    tape_.free(output, log_sum_exp);
  }
}

// Output of wo: saved, or written over what is used up.
void CompiledLayer::project_output(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  TapeTensor& cast = layer.casts[static_cast<std::size_t>(Weight::kOutput)].weight;
  cast = tape_.make(sizes_.autocast ? sizes_.weight(Weight::kOutput) : 0);
  if (sizes_.tensor_parallel) {
    TapeTensor partial = tape_.make_product(sizes_.gathered);
    tape_.free(left.stream);
    if (!saves_all(pass)) {
      tape_.free(layer.gathered);
    }
    left.stream = reduce(partial);
  } else if (saves_nothing(pass)) {
    tape_.free(left.stream);
    left.stream = tape_.write_over(layer.query, sizes_.sequence);
  } else if (left.stream.id != 0) {
    left.stream = tape_.write_over(left.stream, sizes_.sequence);
  } else if (saves_all(pass)) {
    left.stream = tape_.make_product(sizes_.sequence);
  } else {
    left.stream = tape_.write_over(left.norm, sizes_.sequence);
  }
  if (saves_nothing(pass)) {
    tape_.free(layer.query);
  }
  if (saves_all(pass)) {
    layer.after_attention = std::exchange(left.stream, {});
  } else {
    tape_.free(cast);
  }
}

TapeTensor CompiledLayer::feed_forward(LayerTensors& layer, LayerPass pass, Leftovers& left) {
  layer.ffn_statistics = tape_.make(saves_all(pass) ? sizes_.statistics : 0);
  layer.ffn_norm = left.norm.id != 0     ? tape_.write_over(left.norm, sizes_.sequence)
                   : saves_nothing(pass) ? tape_.write_over(layer.output, sizes_.sequence)
                                         : tape_.make(sizes_.sequence);
  if (sizes_.tensor_parallel) {
    layer.ffn_gathered = gather();
    tape_.free(layer.ffn_norm);
  }
  layer.gate = product(layer, Weight::kGate, sizes_.ffn, pass);
  layer.up = product(layer, Weight::kUp, sizes_.ffn, pass);
  if (!saves_all(pass)) {
    tape_.free(layer.ffn_norm, layer.ffn_gathered);
    if (saves_nothing(pass)) {
      std::swap(layer.product, layer.gate);  // written over the gate
    } else {
      std::swap(layer.product, layer.up);
    }
    tape_.free(layer.up);
  } else {
    ProductCasts& casts = layer.casts[static_cast<std::size_t>(Weight::kDown)];
    casts.weight = tape_.make(sizes_.autocast ? sizes_.weight(Weight::kDown) : 0);
    layer.product = tape_.make(sizes_.ffn);
  }
  TapeTensor down = tape_.make_product(sizes_.gathered);
  if (!saves_all(pass)) {
    tape_.free(layer.product);
  }
  if (sizes_.tensor_parallel) {
    down = reduce(down);
  }
  if (!sizes_.tensor_parallel && !sizes_.autocast && saves_all(pass)) {
    return down;  // the sum is written over it
  }
  if (sizes_.tensor_parallel || sizes_.autocast) {
    const TapeTensor output = tape_.make(sizes_.residual);
    if (sizes_.tensor_parallel && pass == LayerPass::kSavesOps) {
      layer.reduced_output = std::exchange(left.stream, {});
    }
    tape_.free(left.stream, down);
    return output;
  }
  tape_.free(down);
  return std::exchange(left.stream, {});
}

TapeTensor CompiledLayer::forward(LayerTensors& layer, LayerPass pass) {
  Leftovers left;
  project(layer, pass);
  rotate(layer, pass, left);
  attend(layer, pass, left);
  project_output(layer, pass, left);
  return feed_forward(layer, pass, left);
}

// Autocast casts a weight's gradient to fp32, the parameter's own.
void CompiledLayer::make_weight(LayerGradients& weights, Weight weight) {
  TapeTensor& gradient = weights.weights[static_cast<std::size_t>(weight)];
  gradient = tape_.make_product(sizes_.weight(weight));
  if (sizes_.autocast) {
    tape_.replace(gradient, kWiden * sizes_.weight(weight));
  }
}

// Forward up to the output of wo, again: everything, or what was not saved of it.
void CompiledLayer::replay_attention(LayerTensors& layer) {
  Leftovers left;
  project(layer, LayerPass::kSaves);
  rotate(layer, LayerPass::kSaves, left);
  attend(layer, LayerPass::kSaves, left);
  project_output(layer, LayerPass::kSaves, left);
}

void CompiledLayer::feed_forward_backward(LayerTensors& layer, LayerGradients& weights,
                                          TapeTensor& of_output, LayerPass replay) {
  if (replay == LayerPass::kSaves) {
    make_weight(weights, Weight::kDown);
    tape_.free(layer.product);
    TapeTensor of_product = tape_.make(sizes_.ffn);
    tape_.free(of_output);
    TapeTensor of_up = tape_.make(sizes_.ffn);
    tape_.free(of_product, layer.gate);
    make_weight(weights, Weight::kUp);
    layer.gate = tape_.make(sizes_.gathered);  // gradient of the input of w3
    tape_.free(of_up);
    make_weight(weights, Weight::kGate);
    tape_.free(layer.ffn_norm, layer.ffn_gathered);
    TapeTensor of_gate = tape_.make(sizes_.gathered);
    tape_.free(layer.up);
    layer.up = of_gate;
    return;
  }
  if (replay == LayerPass::kReplayOps) {
    layer.after_attention = tape_.make(sizes_.sequence);
  }
  layer.ffn_statistics = tape_.make(sizes_.statistics);
  layer.ffn_norm = tape_.make(sizes_.sequence);
  if (sizes_.tensor_parallel) {
    layer.ffn_gathered = gather();
    tape_.free(layer.ffn_norm);
  }
  if (replay == LayerPass::kReplay) {
    layer.gate = tape_.make_product(sizes_.ffn);
  }
  layer.up = tape_.make_product(sizes_.ffn);
  TapeTensor of_product = tape_.make_product(sizes_.ffn);
  tape_.free(of_output);
  layer.product = tape_.make(sizes_.ffn);
  TapeTensor of_gate = tape_.make(sizes_.ffn);
  TapeTensor of_up = tape_.make(sizes_.ffn);
  tape_.free(layer.up, of_product, layer.gate);
  make_weight(weights, Weight::kDown);
  tape_.free(layer.product);
  make_weight(weights, Weight::kUp);
  layer.gate = tape_.make(sizes_.gathered);
  tape_.free(of_gate);
  make_weight(weights, Weight::kGate);
  tape_.free(of_up, layer.ffn_norm, layer.ffn_gathered);
  layer.up = tape_.make(sizes_.gathered);
}

// Gradients of keys and values go round in fp32, those of queries are added up at the end.
void CompiledLayer::ring_backward(LayerTensors& layer, AttentionGradients& gradients) {
  const std::int64_t pair = kWiden * kKeyValue * sizes_.key;
  tape_.free(layer.key, layer.value);
  TapeTensor sent = tape_.make(pair);
  tape_.free(gradients.key, gradients.value);
  TapeTensor received = tape_.make(pair);
  for (std::int64_t round = 1; round < sizes_.cp; ++round) {
    TapeTensor half_lse = tape_.make(sizes_.log_sum_exp / kHalf);
    tape_.free(layer.log_sum_exp);
    TapeTensor query = tape_.make(sizes_.query / kHalf);
    gradients.key = tape_.make(sizes_.key);
    gradients.value = tape_.make(sizes_.key);
    TapeTensor workspace = tape_.make(sizes_.half_workspace);
    tape_.free(workspace, half_lse);
    if (round + 1 == sizes_.cp) {
      tape_.free(layer.output, layer.rotated_query, layer.gathered_key_values);
    }
    tape_.free(sent);
    sent = tape_.make(pair);
    if (round + 1 < sizes_.cp) {
      tape_.free(gradients.key, gradients.value);
      tape_.replace(received, pair);
    }
    tape_.free(query);
  }
  tape_.free(received, sent);
}

CompiledLayer::AttentionGradients CompiledLayer::attention_backward(LayerTensors& layer,
                                                                    LayerPass replay) {
  AttentionGradients gradients;
  gradients.output = tape_.make(sizes_.query);
  TapeTensor wide_key;
  if (replay == LayerPass::kReplayOps) {
    TapeTensor query = tape_.make(kWiden * sizes_.query);
    tape_.free(layer.query);
    TapeTensor turned = tape_.make(kWiden * sizes_.query);
    layer.rotated_query = tape_.make(sizes_.query);
    tape_.free(turned, query);
    if (sizes_.cp == 1) {
      layer.key = tape_.make_product(sizes_.key);
      wide_key = tape_.make(kWiden * sizes_.key);
      TapeTensor turned_key = tape_.make(kWiden * sizes_.key);
      tape_.free(turned_key, wide_key);
    }
  } else {
    layer.rotated_query = std::exchange(layer.query, {});
  }
  gradients.query = tape_.make(sizes_.query);
  gradients.key = tape_.make(sizes_.key);
  gradients.value = tape_.make(sizes_.key);
  TapeTensor workspace = tape_.make(sizes_.workspace);
  tape_.free(workspace);
  if (sizes_.cp > 1) {
    ring_backward(layer, gradients);
  } else {
    tape_.free(layer.log_sum_exp, layer.rotated_query, layer.key, layer.value);
  }
  TapeTensor key = tape_.make(kWiden * sizes_.key);
  TapeTensor angles = tape_.make(sizes_.angle_gradient);
  tape_.free(layer.angles);
  TapeTensor turned_key = tape_.make(kWiden * sizes_.key);
  tape_.free(key, turned_key);
  TapeTensor of_input = tape_.make(sizes_.gathered);  // of wv's
  TapeTensor query = tape_.make(kWiden * sizes_.query);
  TapeTensor turned = tape_.make(kWiden * sizes_.query);
  tape_.free(angles, query, turned);
  layer.product = of_input;
  return gradients;
}

void CompiledLayer::backward(LayerTensors& layer, TapeTensor& gradient, LayerGradients& weights,
                             LayerPass replay) {
  TapeTensor of_output = sizes_.tensor_parallel ? gather()
                         : sizes_.autocast      ? tape_.make(sizes_.sequence)
                                                : TapeTensor{};
  if (replay == LayerPass::kReplay) {
    replay_attention(layer);
  }
  feed_forward_backward(layer, weights, of_output, replay);
  for (ProductCasts& casts : layer.casts) { tape_.free(casts.weight); }
  if (sizes_.tensor_parallel) {
    TapeTensor reduced = reduce(layer.gate);
    tape_.free(layer.up);
    layer.gate = reduced;
  }
  if (replay == LayerPass::kReplayOps) {
    layer.norm_statistics = tape_.make(sizes_.statistics);
    layer.norm = tape_.make(sizes_.sequence);
    if (sizes_.tensor_parallel) {
      layer.gathered = gather();
      tape_.free(layer.norm);
    }
  }
  TapeTensor of_stream = tape_.make(sizes_.residual);
  TapeTensor gathered = sizes_.tensor_parallel ? gather() : TapeTensor{};
  AttentionGradients gradients = attention_backward(layer, replay);
  TapeTensor of_key_input = tape_.make(sizes_.gathered);
  TapeTensor of_norm = tape_.make(sizes_.gathered);
  if (sizes_.tensor_parallel) {
    of_norm = reduce(of_norm);
  }
  tape_.free(gradients.output, layer.product, layer.gate, of_key_input, layer.up,
             layer.after_attention, layer.reduced_output, layer.ffn_statistics,
             layer.norm_statistics, layer.input);
  make_weight(weights, Weight::kOutput);
  TapeTensor next = sizes_.autocast ? tape_.make(sizes_.residual) : std::exchange(of_norm, {});
  tape_.free(of_stream, of_norm, gathered, layer.output, layer.output_copy);
  make_weight(weights, Weight::kKey);
  tape_.free(gradients.key);
  make_weight(weights, Weight::kValue);
  tape_.free(gradients.value);
  make_weight(weights, Weight::kQuery);
  tape_.free(gradients.query, layer.norm, layer.gathered, layer.rotated_query);
  tape_.free(gradient);
  gradient = next;
  if (sizes_.autocast && weights.accumulates) {
    for (TapeTensor& weight : weights.weights) { tape_.free(weight); }
  }
}

}  // namespace shardplan
