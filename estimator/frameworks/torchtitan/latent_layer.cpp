// models/deepseek_v3/model/model.py (Attention, apply_rotary_emb): multi-head latent attention,
// each operation on its own, on one rank of tp and cp.
#include "estimator/frameworks/torchtitan/layer.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16

}  // namespace

// Whether the output of a product is there when forward is over.
bool EagerLayer::keeps(Weight weight, LayerPass pass) const {
  return graph_saves(pass) || (pass == LayerPass::kSavesOps && sizes_.saves_product(weight));
}

TapeTensor EagerLayer::product_or_saved(Weight weight, std::int64_t bytes, LayerPass pass,
                                        TapeTensor& saved) {
  if (pass == LayerPass::kReplayOps && sizes_.saves_product(weight)) {
    return std::exchange(saved, {});
  }
  return tape_.make_product(bytes);
}

// On complex views of fp32.
TapeTensor EagerLayer::turn_in_fp32(std::int64_t bytes) {
  TapeTensor wide = tape_.make(kWiden * bytes);
  TapeTensor product = tape_.make(kWiden * bytes);
  const TapeTensor turned = tape_.make(bytes);
  tape_.free(wide, product);
  return turned;
}

TapeTensor EagerLayer::latent_queries(LayerTensors& layer, LayerPass pass) {
  const TitanMla& s = sizes_.mla;
  LatentTensors& m = layer.latent;
  if (s.query_down > 0) {
    m.query_down = product_or_saved(Weight::kQueryDown, s.query_down, pass, m.query_down);
    m.query_norm = tape_.make(s.query_down);
    layer.query_norm.statistics = tape_.make(sizes_.statistics);
    if (!graph_saves(pass)) {
      tape_.free(layer.query_norm.statistics);
    }
  }
  const TapeTensor projected = product_or_saved(Weight::kQuery, s.query, pass, layer.query);
  if (!graph_saves(pass)) {
    tape_.free(m.query_norm);
  }
  if (!keeps(Weight::kQueryDown, pass)) {
    tape_.free(m.query_down);
  }
  return projected;
}

// Their parts without rotation, and values.
TapeTensor EagerLayer::latent_key_values(LayerTensors& layer, LayerPass pass,
                                         TapeTensor& turned_key) {
  const TitanMla& s = sizes_.mla;
  LatentTensors& m = layer.latent;
  m.key_value_down = product_or_saved(Weight::kKey, s.key_value_down, pass, m.key_value_down);
  turned_key = turn_in_fp32(s.key_rotary);
  TapeTensor copy = tape_.make(s.key_value_norm);  // without the part that is turned
  m.key_value_norm = tape_.make(s.key_value_norm);
  layer.key_norm.statistics = tape_.make(sizes_.statistics);
  tape_.free(copy);
  const TapeTensor key_value = product_or_saved(Weight::kValue, s.key_value, pass, m.key_value);
  if (!graph_saves(pass)) {
    tape_.free(layer.key_norm.statistics, m.key_value_norm);
  }
  if (!keeps(Weight::kKey, pass)) {
    tape_.free(m.key_value_down);
  }
  return key_value;
}

// flex_attention is compiled, and a checkpoint by operations saves what its graph returns: with the
// output its inputs. A replay makes them again all the same.
void EagerLayer::latent_attention(LayerTensors& layer, LayerPass pass) {
  const TitanMla& s = sizes_.mla;
  LatentTensors& m = layer.latent;
  const bool saves_ops = pass == LayerPass::kSavesOps;
  const bool has_inputs = s.is_flex && pass == LayerPass::kReplayOps;
  TapeTensor projected = latent_queries(layer, pass);
  TapeTensor turned = turn_in_fp32(s.query_rotary);
  TapeTensor query = tape_.make(s.query);
  TapeTensor turned_key;
  TapeTensor key_value = latent_key_values(layer, pass, turned_key);
  TapeTensor key = tape_.make(s.query);
  if (pass != LayerPass::kReplayOps) {
    layer.output = tape_.make(s.output);
    layer.log_sum_exp = tape_.make(sizes_.log_sum_exp);
  }
  if (pass == LayerPass::kSavesNothing) {
    tape_.free(layer.log_sum_exp);
  }
  TapeTensor output = product_or_saved(Weight::kOutput, sizes_.sequence, pass, m.projected);
  if (saves_ops && sizes_.saves_product(Weight::kQuery)) {
    layer.query = std::exchange(projected, {});
  }
  const bool keeps_inputs = graph_saves(pass) || (saves_ops && s.is_flex);
  if (keeps_inputs && !has_inputs) {
    layer.rotated_query = std::exchange(query, {});
    layer.rotated_key = std::exchange(key, {});
  }
  if ((keeps_inputs || keeps(Weight::kValue, pass)) && m.key_value.id == 0) {
    m.key_value = std::exchange(key_value, {});
  }
  tape_.free(query, projected, turned, turned_key, key_value, key);
  if (pass == LayerPass::kSavesNothing) {
    tape_.free(layer.output);
  }
  if (!graph_saves(pass)) {
    tape_.free(layer.norm);
  }
  layer.after_attention = tape_.make(sizes_.residual);
  if (saves_ops && sizes_.saves_product(Weight::kOutput)) {
    m.projected = std::exchange(output, {});
  }
  tape_.free(output);
}

TapeTensor EagerLayer::norm_latent_backward(TapeTensor& of_output, TapeTensor& input,
                                            TapeTensor& statistics, bool copies) {
  const std::int64_t bytes = of_output.bytes;
  TapeTensor copy = tape_.make(copies ? bytes : 0);
  const TapeTensor of_input = tape_.make(bytes);
  tape_.free(copy, of_output, input, statistics);
  return of_input;
}

// Leaves the gradient of the layer's normed input.
TapeTensor EagerLayer::latent_key_value_backward(LayerTensors& layer, TapeTensor& of_key,
                                                 TapeTensor& of_value, LayerGradients& weights) {
  const TitanMla& s = sizes_.mla;
  LatentTensors& m = layer.latent;
  TapeTensor of_key_value = tape_.make(s.key_value);
  tape_.free(of_key, of_value);
  TapeTensor of_norm = product_backward(layer, weights, Weight::kValue, s.key_value_norm,
                                        of_key_value, {&m.key_value_norm});
  TapeTensor of_latent =
      norm_latent_backward(of_norm, m.key_value_down, layer.key_norm.statistics, true);
  TapeTensor turned = turn_in_fp32(s.key_rotary);
  TapeTensor of_down = tape_.make(s.key_value_down);
  tape_.free(of_latent, turned);
  return product_backward(layer, weights, Weight::kKey, sizes_.sequence, of_down, {});
}

TapeTensor EagerLayer::latent_query_backward(LayerTensors& layer, TapeTensor& of_query,
                                             LayerGradients& weights) {
  const TitanMla& s = sizes_.mla;
  LatentTensors& m = layer.latent;
  TapeTensor turned = turn_in_fp32(s.query_rotary);
  TapeTensor of_projected = tape_.make(s.query);
  tape_.free(of_query, turned);
  if (s.query_down == 0) {
    return product_backward(layer, weights, Weight::kQuery, sizes_.sequence, of_projected,
                            {&layer.norm});
  }
  TapeTensor of_norm =
      product_backward(layer, weights, Weight::kQuery, s.query_down, of_projected, {&m.query_norm});
  TapeTensor of_down =
      norm_latent_backward(of_norm, m.query_down, layer.query_norm.statistics, false);
  return product_backward(layer, weights, Weight::kQueryDown, sizes_.sequence, of_down,
                          {&layer.norm});
}

void EagerLayer::latent_attention_backward(LayerTensors& layer, TapeTensor& gradient,
                                           LayerGradients& weights) {
  const TitanMla& s = sizes_.mla;
  TapeTensor none;
  TapeTensor of_output = product_backward(layer, weights, Weight::kOutput, s.output, none, {});
  TapeTensor copy = tape_.make(s.is_flex ? s.output : 0);  // in the strides of the kernel
  if (s.is_flex) {
    tape_.free(layer.output);
  }
  TapeTensor of_query = tape_.make(s.query);
  TapeTensor of_key = tape_.make(s.query);
  TapeTensor of_value = tape_.make(s.output);
  TapeTensor workspace = tape_.make(s.is_flex ? sizes_.log_sum_exp : sizes_.workspace);
  tape_.free(workspace);
  tape_.free(layer.output, layer.log_sum_exp, layer.latent.key_value, layer.rotated_query,
             layer.rotated_key, copy, of_output);
  TapeTensor sum = latent_key_value_backward(layer, of_key, of_value, weights);
  TapeTensor addend = latent_query_backward(layer, of_query, weights);
  add(sum, addend, false);
  norm_backward(gradient, sum, layer.input, layer.norm_statistics);
}

}  // namespace shardplan::torchtitan
