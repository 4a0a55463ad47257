// The weights of embeddings that every layer adds for itself.
#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::huggingface {

// Adapters on all linear layers alone stand on these.
void CausalLm::build_per_layer_table() {
  const PerLayerEmbeddingSpec& spec = job_.model.per_layer_embedding;
  const std::int64_t width = job_.model.num_layers() * spec.width;
  load(per_layer_.table, {"embed_tokens_per_layer", ".weight"}, {spec.vocab, width}, ends_);
  build_linear(per_layer_.projection, LinearLayer::kLatent, "per_layer_model_projection",
               {sizes_.hidden, width}, false);
  build_norm(per_layer_.norm, "per_layer_projection_norm", spec.width);
}

void CausalLm::build_per_layer_input(Layer& layer) {
  const std::int64_t width = job_.model.per_layer_embedding.width;
  PerLayerInput& input = layer.per_layer;
  build_linear(input.gate, LinearLayer::kLatent, "per_layer_input_gate", {sizes_.hidden, width},
               false);
  build_linear(input.projection, LinearLayer::kLatent, "per_layer_projection",
               {width, sizes_.hidden}, false);
  build_norm(input.norm, "post_per_layer_input_norm", sizes_.hidden);
}

}  // namespace shardplan::huggingface
