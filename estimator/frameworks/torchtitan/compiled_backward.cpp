#include "estimator/frameworks/torchtitan/compiled_layer.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;     // fp32 for bf16
constexpr std::int64_t kKeyValue = 2;  // keys and values in one tensor
constexpr std::int64_t kHalf = 2;      // half the queries from the second round of a ring on

}  // namespace

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

// Up to the gate, again: everything, or what was not saved of it.
void CompiledLayer::replay_feed_forward(LayerTensors& layer, LayerPass replay) {
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
}

// Saved: each gradient is there as it is needed. Replayed: one kernel writes the product again and
// the gradients of gate and up.
CompiledLayer::FeedForwardGradients CompiledLayer::feed_forward_backward(LayerTensors& layer,
                                                                         LayerGradients& weights,
                                                                         TapeTensor& of_output,
                                                                         LayerPass replay) {
  FeedForwardGradients gradients;
  if (replay == LayerPass::kSaves) {
    make_weight(weights, Weight::kDown);
    tape_.free(layer.product);
    TapeTensor of_product = tape_.make_product(sizes_.ffn);
    tape_.free(of_output);
    TapeTensor of_up = tape_.make(sizes_.ffn);
    tape_.free(of_product, layer.gate);
    make_weight(weights, Weight::kUp);
    gradients.of_up = tape_.make(sizes_.gathered);
    tape_.free(of_up);
    make_weight(weights, Weight::kGate);
    tape_.free(layer.ffn_norm, layer.ffn_gathered);
    gradients.of_gate = tape_.make(sizes_.gathered);
    tape_.free(layer.up);
    return gradients;
  }
  replay_feed_forward(layer, replay);
  TapeTensor of_product = tape_.make_product(sizes_.ffn);
  tape_.free(of_output);
  layer.product = tape_.make(sizes_.ffn);
  TapeTensor of_gate = tape_.make(sizes_.ffn);
  TapeTensor of_up = tape_.make(sizes_.ffn);
  tape_.free(layer.up, of_product, layer.gate);
  make_weight(weights, Weight::kDown);
  tape_.free(layer.product);
  make_weight(weights, Weight::kUp);
  gradients.of_up = tape_.make(sizes_.gathered);
  tape_.free(of_gate);
  make_weight(weights, Weight::kGate);
  tape_.free(of_up, layer.ffn_norm, layer.ffn_gathered);
  gradients.of_gate = tape_.make(sizes_.gathered);
  return gradients;
}

// Gradients of keys and values go round in fp32, those of queries are added up at the end.
void CompiledLayer::ring_backward(LayerTensors& layer, AttentionGradients& gradients) {
  const std::int64_t pair = kWiden * kKeyValue * sizes_.key;
  tape_.free(layer.rotated_key.id != 0 ? layer.rotated_key : layer.key, layer.value);
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

// Saved queries are rotated again; keys are projected again but for a ring, which has saved them.
void CompiledLayer::replay_rotation(LayerTensors& layer) {
  TapeTensor query = tape_.make(kWiden * sizes_.query);
  tape_.free(layer.query);
  TapeTensor turned = tape_.make(kWiden * sizes_.query);
  layer.rotated_query = tape_.make(sizes_.query);
  tape_.free(turned, query);
  if (sizes_.cp == 1) {
    layer.key = tape_.make_product(sizes_.key);
    TapeTensor key = tape_.make(kWiden * sizes_.key);
    TapeTensor turned_key = tape_.make(kWiden * sizes_.key);
    tape_.free(turned_key, key);
  }
}

void CompiledLayer::replay_halves(LayerTensors& layer) {
  if (sizes_.cp > 1) {  // rotated keys are saved
    layer.rotated_query = tape_.make(sizes_.query);
    return;
  }
  layer.key = tape_.make_product(sizes_.key);
  layer.key_norm.statistics = tape_.make(sizes_.key_statistics);
  layer.rotated_key = tape_.make(sizes_.key);
  layer.query_norm.statistics = tape_.make(sizes_.query_statistics);
  layer.rotated_query = tape_.make(sizes_.query);
}

// One kernel turns a gradient back, in fp32, another is the norm's.
void CompiledLayer::halves_backward(LayerTensors& layer, AttentionGradients& gradients) {
  if (sizes_.cp > 1) {  // a ring's are added up in fp32
    TapeTensor sum = tape_.make(kWiden * sizes_.query);
    tape_.free(gradients.query);
    TapeTensor in_order = tape_.make(kWiden * sizes_.query);
    tape_.free(sum);
    gradients.query = tape_.make(sizes_.query);
    tape_.free(in_order);
  }
  TapeTensor wide_key = tape_.make(kWiden * sizes_.key);
  const TapeTensor of_key = tape_.make(sizes_.key);
  tape_.free(gradients.key);
  gradients.key = of_key;
  gradients.input = tape_.make(sizes_.gathered);
  TapeTensor wide_query = tape_.make(kWiden * sizes_.query);
  tape_.free(layer.cosines, layer.sines);
  tape_.free(wide_query, layer.query, layer.query_norm.statistics);
  tape_.free(wide_key, layer.key, layer.key_norm.statistics);
}

CompiledLayer::AttentionGradients CompiledLayer::attention_backward(LayerTensors& layer,
                                                                    LayerPass replay) {
  AttentionGradients gradients;
  gradients.output = tape_.make_product(sizes_.query);
  if (replay == LayerPass::kReplayOps && sizes_.norms_query_key) {
    replay_halves(layer);
  } else if (replay == LayerPass::kReplayOps) {
    replay_rotation(layer);
  } else if (!sizes_.norms_query_key) {
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
    TapeTensor& key = sizes_.norms_query_key ? layer.rotated_key : layer.key;
    tape_.free(layer.log_sum_exp, layer.rotated_query, key, layer.value);
  }
  if (sizes_.norms_query_key) {
    halves_backward(layer, gradients);
    return gradients;
  }
  TapeTensor key = tape_.make(kWiden * sizes_.key);
  TapeTensor angles = tape_.make(sizes_.angle_gradient);
  tape_.free(layer.angles);
  TapeTensor turned_key = tape_.make(kWiden * sizes_.key);
  tape_.free(key, turned_key);
  gradients.input = tape_.make(sizes_.gathered);
  TapeTensor query = tape_.make(kWiden * sizes_.query);
  TapeTensor turned = tape_.make(kWiden * sizes_.query);
  tape_.free(angles, query, turned);
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
  FeedForwardGradients inputs = feed_forward_backward(layer, weights, of_output, replay);
  for (ProductCasts& casts : layer.casts) { tape_.free(casts.weight); }
  if (sizes_.tensor_parallel) {
    inputs.of_up = reduce(inputs.of_up);
    tape_.free(inputs.of_gate);
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
  tape_.free(gradients.output, gradients.input, inputs.of_up, of_key_input, inputs.of_gate,
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

}  // namespace shardplan::torchtitan
