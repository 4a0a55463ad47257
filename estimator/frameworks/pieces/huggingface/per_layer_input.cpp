#include "estimator/frameworks/pieces/huggingface/per_layer_input.h"

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

using eager::Tensor;

Tensor per_layer_product(eager::Graph& graph, PerLayerInput& input, const Tensor& of_layer,
                         const Tensor& hidden) {
  Tensor gate = project(graph, input.gate, hidden);
  gate = eager::silu(graph, gate);
  return project(graph, input.projection, eager::multiply(graph, gate, of_layer));
}

}  // namespace shardplan::huggingface
