#include "estimator/frameworks/pieces/eager/python_linear.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"

namespace shardplan::eager {

Tensor python_linear(Graph& graph, const Tensor& input, const Tensor& weight,
                     const LinearShape& shape, const Tensor& bias) {
  NodeBuilder node(graph, {&input, &weight, &bias});
  const std::int64_t rows = input.elements / shape.inputs;
  const DType dtype = input.dtype;
  Tensor output = graph.make_product(rows * shape.outputs, dtype);
  if (node.is_needed()) {
    node.save(input);
    node.save(weight);
    if (bias.is_defined()) {
      node.sum_columns();
    }
  }
  return node.finish(std::move(output), [=](BackwardCall& call) {
    const Tensor saved_input = call.saved(0);
    const Tensor saved_weight = call.saved(1);
    Tensors gradients(3);
    if (call.wants(0)) {
      gradients[0] = call.graph.make_product(rows * shape.inputs, dtype);
    }
    if (call.wants(1)) {
      const InRow row(call.graph.tape, kWeightGradientsRow);
      gradients[1] = call.graph.make_product(shape.outputs * shape.inputs, dtype);
    }
    if (call.wants(2)) {
      gradients[2] = call.gradients[0];
    }
    return gradients;
  });
}

}  // namespace shardplan::eager
