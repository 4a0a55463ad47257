// Attention of a torchtitan layer with a mixture of experts, a compiled graph of its own.
#include "estimator/frameworks/torchtitan/compiled_mixture.h"
#include "estimator/frameworks/torchtitan/qwen3.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;     // fp32 for bf16
constexpr std::int64_t kKeyValue = 2;  // keys and values in one tensor
constexpr std::int64_t kHalf = 2;      // half the queries from the second round of a ring on

}  // namespace

void CompiledMixture::rotate(LayerTensors& layer, LayerPass pass) {
  if (pass == LayerPass::kSaves || layer.rotary_cast.id == 0) {
    save_rotary(tape_, sizes_, layer);
  }
  layer.query_norm.statistics = tape_.make(sizes_.query_statistics);
  layer.rotated_query = tape_.make(sizes_.query);
  layer.key_norm.statistics = tape_.make(sizes_.key_statistics);
  layer.rotated_key = tape_.make(sizes_.key);
}

// A checkpoint by operations keeps the output of every round, not what they are merged to.
void CompiledMixture::attend(LayerTensors& layer, LayerPass pass) {
  const bool computes = pass != LayerPass::kReplayOps;
  if (sizes_.cp == 1) {
    if (computes) {
      layer.output = tape_.make(sizes_.query);
      layer.log_sum_exp = tape_.make(sizes_.log_sum_exp);
    }
    return;
  }
  const TapeTensor value = tape_.make(sizes_.key);
  tape_.free(layer.value);
  layer.value = value;
  if (computes) {
    layer.ring_outputs.push_back(tape_.make(sizes_.query));
  }
  TapeTensor joined = tape_.make(kKeyValue * sizes_.key);
  layer.gathered_key_values = tape_.make(sizes_.cp * kKeyValue * sizes_.key);
  tape_.free(joined);
  for (std::int64_t round = 1; computes && round < sizes_.cp; ++round) {
    layer.ring_outputs.push_back(tape_.make(sizes_.query / kHalf));
  }
  layer.log_sum_exp = tape_.make(sizes_.log_sum_exp);
  layer.output = tape_.make(sizes_.query);
  layer.output_copy = tape_.make(sizes_.query);
}

// Of a ring, over the output of a round where that is as large.
TapeTensor CompiledMixture::project_output(LayerTensors& layer, LayerPass pass) {
  const bool replays_ops = pass == LayerPass::kReplayOps;
  cast_of(layer, Weight::kOutput) =
      tape_.make(sizes_.autocast ? sizes_.weight(Weight::kOutput) : 0);
  TapeTensor projected;
  if (pass != LayerPass::kSavesOps && !replays_ops) {
    for (TapeTensor& output : layer.ring_outputs) {
      if (output.bytes == sizes_.gathered && projected.id == 0) {
        projected = std::exchange(output, {});
      }
      tape_.free(output);
    }
    layer.ring_outputs.clear();
  }
  if (projected.id == 0 && layer.ring_outputs.empty()) {
    projected = tape_.make_product(sizes_.gathered);
  }
  if (sizes_.tensor_parallel) {
    TapeTensor input = tape_.make(sizes_.gathered);
    tape_.free(projected);
    projected = tape_.make(replays_ops ? 0 : sizes_.sequence);
    tape_.free(input);
  }
  return projected;
}

void CompiledMixture::drop_attention(LayerTensors& layer, LayerPass pass) {
  tape_.free(layer.casts[static_cast<std::size_t>(Weight::kQuery)].input, layer.query, layer.key,
             layer.query_norm.statistics, layer.key_norm.statistics, layer.cosines, layer.sines,
             layer.rotated_query, layer.rotated_key, layer.value);
  if (pass == LayerPass::kSavesNothing || sizes_.cp > 1) {
    tape_.free(layer.output, layer.output_copy, layer.log_sum_exp, layer.gathered_key_values);
  }
  for (const Weight weight : {Weight::kOutput, Weight::kValue, Weight::kKey, Weight::kQuery}) {
    tape_.free(cast_of(layer, weight));
  }
  tape_.free(layer.norm_statistics, layer.gathered);
}

void CompiledMixture::attention(LayerTensors& layer, LayerPass pass) {
  const bool replays_ops = pass == LayerPass::kReplayOps;
  layer.norm = tape_.make(sizes_.residual);
  layer.norm_statistics = tape_.make(sizes_.statistics);
  if (sizes_.tensor_parallel) {
    layer.gathered = gather(sizes_.joins_batch);
  }
  layer.casts[static_cast<std::size_t>(Weight::kQuery)].input =
      tape_.make(sizes_.autocast ? sizes_.sequence : 0);
  const auto project = [&](Weight weight, std::int64_t bytes) {
    cast_of(layer, weight) = tape_.make(sizes_.autocast ? sizes_.weight(weight) : 0);
    return tape_.make_product(bytes);
  };
  layer.query = project(Weight::kQuery, sizes_.query);
  layer.key = project(Weight::kKey, sizes_.key);
  layer.value = project(Weight::kValue, sizes_.key);
  rotate(layer, pass);
  attend(layer, pass);
  TapeTensor projected = project_output(layer, pass);
  if (!graph_saves(pass)) {
    drop_attention(layer, pass);
  }
  if (!graph_saves(pass) || sizes_.tensor_parallel || sizes_.autocast) {
    tape_.free(layer.norm);
  }
  if (replays_ops && sizes_.tensor_parallel) {
    projected = std::exchange(layer.reduced_output, {});
  }
  layer.after_attention = tape_.make(sizes_.residual);
  if (pass == LayerPass::kSavesOps && sizes_.tensor_parallel) {
    layer.reduced_output = std::exchange(projected, {});
  }
  tape_.free(projected);
  if (replays_ops) {
    for (TapeTensor& output : layer.ring_outputs) { tape_.free(output); }
    layer.ring_outputs.clear();
  }
}

CompiledMixture::CoreGradients CompiledMixture::core_backward(LayerTensors& layer,
                                                              TapeTensor& of_output) {
  CoreGradients gradients;
  gradients.query = tape_.make(sizes_.query);
  gradients.key = tape_.make(sizes_.key);
  gradients.value = tape_.make(sizes_.key);
  TapeTensor workspace = tape_.make(sizes_.workspace);
  tape_.free(workspace);
  if (sizes_.cp == 1) {
    tape_.free(of_output, layer.log_sum_exp, layer.rotated_query, layer.rotated_key, layer.value);
  }
  return gradients;
}

// Gradients of queries are added up in fp32, those of keys and values exchanged in it.
CompiledMixture::CoreGradients CompiledMixture::ring_backward(LayerTensors& layer,
                                                              TapeTensor& of_output) {
  const std::int64_t pair = kWiden * kKeyValue * sizes_.key;
  CoreGradients first = core_backward(layer, of_output);
  tape_.free(layer.rotated_key, layer.value);
  CoreGradients gradients;
  TapeTensor sum;
  TapeTensor sent;
  TapeTensor received;
  TapeTensor half_query;
  for (std::int64_t round = 1; round < sizes_.cp; ++round) {
    tape_.free(half_query, gradients.key, gradients.value);
    half_query = tape_.make(sizes_.query / kHalf);
    gradients.key = tape_.make(sizes_.key);
    gradients.value = tape_.make(sizes_.key);
    TapeTensor workspace = tape_.make(sizes_.half_workspace);
    tape_.free(workspace);
    if (round + 1 == sizes_.cp) {
      tape_.free(of_output, layer.output, layer.log_sum_exp, layer.rotated_query,
                 layer.gathered_key_values);
    }
    if (round == 1) {
      sum = tape_.make(kWiden * sizes_.query);
      tape_.free(first.query);
      sent = tape_.make(pair);
      tape_.free(first.key, first.value);
    } else {
      tape_.free(sent);
      sent = std::exchange(received, {});
    }
    tape_.replace(sum, kWiden * sizes_.query);
    received = tape_.make(pair);
  }
  gradients.query = tape_.make(sizes_.query);
  tape_.free(sum, layer.query, layer.query_norm.statistics, sent);
  sent = tape_.make(pair);
  tape_.free(half_query, received);
  TapeTensor wide_key = tape_.make(kWiden * sizes_.key);
  tape_.free(layer.cosines, sent, wide_key, layer.key, layer.key_norm.statistics);
  return gradients;
}

// One kernel turns a gradient back, in fp32, another is the norm's.
void CompiledMixture::head_norms_backward(LayerTensors& layer, CoreGradients& gradients) {
  TapeTensor wide_key = tape_.make(kWiden * sizes_.key);
  const TapeTensor of_key = tape_.make(sizes_.key);
  tape_.free(gradients.key);
  gradients.key = of_key;
  tape_.free(wide_key, layer.key, layer.key_norm.statistics);
  TapeTensor wide_query = tape_.make(kWiden * sizes_.query);
  tape_.free(layer.cosines, layer.sines);
  tape_.free(wide_query, layer.query, layer.query_norm.statistics);
}

void CompiledMixture::make_weight(LayerGradients& weights, Weight weight) {
  TapeTensor& gradient = gradient_of(weights, weight);
  if (gradient.id == 0) {
    gradient = tape_.make_product(sizes_.weight(weight));
  }
}

TapeTensor CompiledMixture::projections_backward(LayerTensors& layer, CoreGradients& gradients,
                                                 LayerGradients& weights) {
  TapeTensor sum = tape_.make_product(sizes_.gathered);
  TapeTensor of_key_input = tape_.make(sizes_.gathered);
  make_weight(weights, Weight::kValue);
  tape_.free(gradients.value);
  make_weight(weights, Weight::kKey);
  tape_.free(gradients.key);
  make_weight(weights, Weight::kOutput);
  tape_.free(layer.output, layer.output_copy);
  TapeTensor of_query_input = tape_.make(sizes_.gathered);
  make_weight(weights, Weight::kQuery);
  tape_.free(gradients.query, layer.norm, layer.gathered, of_key_input, of_query_input);
  return sum;
}

// Under autocast: two gradients of one size are made in one bf16 buffer, and cast from it.
TapeTensor CompiledMixture::cast_projections_backward(LayerTensors& layer, CoreGradients& gradients,
                                                      LayerGradients& weights) {
  const auto cast = [&](Weight weight) {
    gradient_of(weights, weight) = tape_.make(kWiden * sizes_.weight(weight));
  };
  TapeTensor narrow = tape_.make_product(sizes_.weight(Weight::kKey));
  cast(Weight::kKey);
  cast(Weight::kValue);
  tape_.free(narrow);
  TapeTensor of_value_input = tape_.make_product(sizes_.sequence);
  tape_.free(gradients.value, cast_of(layer, Weight::kValue));
  TapeTensor of_key_input = tape_.make(sizes_.sequence);
  tape_.free(gradients.key, cast_of(layer, Weight::kKey));
  narrow = tape_.make(sizes_.weight(Weight::kOutput));
  tape_.free(layer.output);
  cast(Weight::kOutput);
  tape_.free(layer.casts[static_cast<std::size_t>(Weight::kQuery)].input);
  cast(Weight::kQuery);
  TapeTensor of_query_input =
      narrow.bytes == sizes_.sequence ? std::exchange(narrow, {}) : TapeTensor{};
  tape_.free(narrow);
  of_query_input = of_query_input.id != 0 ? of_query_input : tape_.make(sizes_.sequence);
  tape_.free(gradients.query, cast_of(layer, Weight::kQuery));
  const TapeTensor sum = tape_.make(sizes_.residual);
  tape_.free(of_value_input, of_key_input, of_query_input);
  return sum;
}

void CompiledMixture::attention_backward(LayerTensors& layer, TapeTensor& gradient,
                                         LayerGradients& weights) {
  TapeTensor of_projection = sizes_.tensor_parallel ? gather(false) : projection_gradient();
  TapeTensor of_output;
  if (sizes_.cp > 1) {
    make_weight(weights, Weight::kOutput);
    tape_.free(layer.output_copy);
    of_output = tape_.make(sizes_.query);
  } else if (sizes_.tensor_parallel && sizes_.joins_batch) {
    TapeTensor joined = tape_.make(sizes_.gathered);
    make_weight(weights, Weight::kOutput);
    of_output = tape_.write_over(of_projection, sizes_.query);
    tape_.free(joined, layer.output);
  } else {
    of_output = tape_.make_product(sizes_.query);
  }
  tape_.free(cast_of(layer, Weight::kOutput));
  CoreGradients gradients =
      sizes_.cp > 1 ? ring_backward(layer, of_output) : core_backward(layer, of_output);
  if (sizes_.cp == 1) {
    head_norms_backward(layer, gradients);
  }
  TapeTensor sum = sizes_.autocast ? cast_projections_backward(layer, gradients, weights)
                                   : projections_backward(layer, gradients, weights);
  tape_.free(of_projection);
  if (sizes_.autocast && weights.accumulates) {
    for (const Weight weight : {Weight::kQuery, Weight::kKey, Weight::kValue, Weight::kOutput}) {
      tape_.free(gradient_of(weights, weight));
    }
  }
  TapeTensor of_norm = reduce_gradient(sum);
  norm_backward(gradient, of_norm, layer.input, layer.norm_statistics);
}

}  // namespace shardplan::torchtitan
