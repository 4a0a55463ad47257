#include "estimator/plan/parameter_tensor.h"

#include <utility>

namespace shardplan {

void add_tensor(ParameterTensors& tensors, std::string name, std::int64_t elements,
                Sharding sharding) {
  tensors.push_back({.name = std::move(name), .elements = elements, .sharding = sharding});
}

void add_linear(ParameterTensors& tensors, std::string name, std::int64_t elements,
                Sharding sharding) {
  add_tensor(tensors, std::move(name), elements, sharding);
  tensors.back().is_linear = true;
}

// A LayerNorm has a bias beside its weight (GPT-2; Megatron-LM --normalization LayerNorm), but
// Cohere's; OLMo's have neither.
void add_norm(ParameterTensors& tensors, const ModelSpec& model, const std::string& name,
              std::int64_t width) {
  if (!model.norm_weights) {
    return;
  }
  add_tensor(tensors, name, width, Sharding::kReplicated);
  if (model.layer_norm && model.norm_bias) {
    add_tensor(tensors, name + "_bias", width, Sharding::kReplicated);
  }
}

}  // namespace shardplan
