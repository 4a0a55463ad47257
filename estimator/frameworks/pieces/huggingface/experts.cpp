#include "estimator/frameworks/pieces/huggingface/experts.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// In place or into a tensor of its own; its gradient is a copy.
Tensor masked_fill(Graph& graph, const Tensor& input, bool in_place) {
  NodeBuilder node(graph, {&input});
  Tensor output = in_place ? input : graph.make(input.elements, input.dtype);
  return node.finish(std::move(output), [](BackwardCall& call) {
    const Tensor& gradient = call.gradients[0];
    return Tensors{call.graph.make(gradient.elements, gradient.dtype)};
  });
}

// In the type of its arguments, which autocast leaves. Derivatives of the weights, then of the
// rows.
Tensor grouped_product(Graph& graph, const Tensor& rows, const Tensor& weights,
                       std::int64_t outputs) {
  NodeBuilder node(graph, {&rows, &weights});
  if (node.is_needed()) {
    if (rows.requires_grad()) {
      node.save(weights);
    }
    if (weights.requires_grad()) {
      node.save(rows);
    }
  }
  const std::int64_t of_x = rows.elements;
  const std::int64_t of_w = weights.elements;
  const DType dtype = rows.dtype;
  return node.finish(graph.make(outputs, dtype), [=](BackwardCall& call) {
    Tensors saved;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
      }
    }
    Tensors gradients(2);
    if (call.wants(1)) {
      const InRow row(call.graph.tape, eager::kWeightGradientsRow);
      gradients[1] = call.graph.make(of_w, dtype);
    }
    if (call.wants(0)) {
      gradients[0] = call.graph.make(of_x, dtype);
    }
    return gradients;
  });
}

// Halves of every row are views; their gradients are put together.
Tensor gated(Graph& graph, const Tensor& rows) {
  NodeBuilder node(graph, {&rows});
  const std::int64_t elements = rows.elements / 2;
  const DType dtype = rows.dtype;
  Tensor activation = graph.make(elements, dtype);
  Tensor product = graph.make(elements, dtype);
  if (node.is_needed()) {
    node.save(activation);
    node.save(rows);
  }
  return node.finish(std::move(product), [=](BackwardCall& call) {
    Tensor saved_rows = call.saved(1);
    Graph& g = call.graph;
    const Tensor of_up = g.make(elements, dtype);
    Tensor of_gate;
    {
      const Tensor saved_activation = call.saved(0);
      const Tensor of_activation = g.make(elements, dtype);
      call.gradients[0] = {};
      of_gate = g.make(elements, dtype);
    }
    return Tensors{g.make(2 * elements, dtype)};
  });
}

// Sums over the experts of a token, in fp32 under autocast.
Tensor sum_of_chosen(Graph& graph, const Tensor& rows, std::int64_t elements) {
  NodeBuilder node(graph, {&rows});
  const DType dtype = graph.autocast ? DType::kFp32 : rows.dtype;
  const std::int64_t all = rows.elements;
  const DType of_rows = rows.dtype;
  return node.finish(graph.make(elements, dtype),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(all, of_rows)}; });
}

// Weights of the chosen experts, one for each row.
Tensor route(Graph& graph, const Experts& experts, const Tensor& hidden, const ExpertSizes& sizes) {
  Tensor scores =
      eager::linear(graph, hidden, experts.router.data,
                    {.inputs = sizes.hidden, .outputs = sizes.experts, .flattens_input = false});
  const DType dtype = scores.dtype;
  scores = eager::log_softmax(graph, eager::to(graph, scores, DType::kFp32));
  const Tensor top = eager::index(graph, scores, sizes.tokens * sizes.chosen);
  return eager::to(graph, top, dtype);
}

}  // namespace

Tensor experts_forward(Graph& graph, const Experts& experts, const Tensor& hidden,
                       const ExpertSizes& sizes) {
  const std::int64_t rows = sizes.tokens * sizes.chosen;
  const Tensor weights = route(graph, experts, hidden, sizes);
  Tensor selected = eager::index(graph, hidden, rows * sizes.hidden);
  selected = masked_fill(graph, selected, true);
  Tensor output = grouped_product(graph, selected, experts.gate_up.data, rows * 2 * sizes.ffn);
  output = masked_fill(graph, output, false);
  output = gated(graph, output);
  output = grouped_product(graph, output, experts.down.data, rows * sizes.hidden);
  output = masked_fill(graph, output, false);
  Tensor weighted = eager::multiply(graph, output, weights);
  weighted = eager::index(graph, weighted, rows * sizes.hidden);
  const Tensor sum = sum_of_chosen(graph, weighted, sizes.tokens * sizes.hidden);
  return eager::to(graph, sum, hidden.dtype);
}

}  // namespace shardplan::huggingface
