// Embeddings of tokens that every layer adds for itself. Source: transformers 5.17
// models/gemma4/modeling_gemma4.py Gemma4TextModel.get_per_layer_inputs,
// project_per_layer_inputs, Gemma4TextDecoderLayer.
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/norms.h"
#include "estimator/plan/layer_spec.h"

namespace shardplan::huggingface {

// Of all layers: a table, [vocab, layers * width], and a projection of the model's own embeddings
// with a norm of each layer's part.
struct PerLayerTable {
  eager::Parameter table;
  Linear projection;
  Norm norm;
};

// Of one layer: a gate of its tokens, which multiplies their part, and a projection back.
struct PerLayerInput {
  Linear gate, projection;
  Norm norm;
};

// Parts of every layer, views of one tensor; the norm as `apply`.
template <typename ApplyNorm>
eager::Tensors per_layer_inputs(eager::Graph& graph, PerLayerTable& of_all,
                                const PerLayerEmbeddingSpec& spec, std::int64_t layers,
                                const eager::Tensor& token_ids, const eager::Tensor& hidden,
                                ApplyNorm apply) {
  const std::int64_t width = layers * spec.width;
  const eager::Tensor of_tokens = eager::scale(
      graph,
      eager::embedding(graph, token_ids, of_all.table.data, {.rows = spec.vocab, .width = width}));
  eager::Tensor both = eager::scale(graph, project(graph, of_all.projection, hidden));
  both = apply(of_all.norm, both);
  both = eager::scale(graph, eager::add(graph, both, of_tokens));
  eager::Tensors parts;
  for (std::int64_t i = 0; i < layers; ++i) {
    parts.push_back(eager::slice(graph, both, both.elements / layers));
  }
  return parts;
}

// Up to the projection back.
eager::Tensor per_layer_product(eager::Graph& graph, PerLayerInput& input,
                                const eager::Tensor& of_layer, const eager::Tensor& hidden);

}  // namespace shardplan::huggingface
