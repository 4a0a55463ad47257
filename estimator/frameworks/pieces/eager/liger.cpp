#include "estimator/frameworks/pieces/eager/liger.h"

#include <utility>

namespace shardplan::eager {

Tensor liger_norm(Graph& graph, const Tensor& weight, const Tensor& input, bool reuses_gradient) {
  NodeBuilder node(graph, {&input, &weight});
  const std::int64_t columns = weight.elements;
  const DType dtype = weight.dtype;
  const Tensor output = graph.make(input.elements, input.dtype);
  const Tensor roots = graph.make(input.elements / columns, DType::kFp32);
  if (node.is_needed()) {
    node.save(input);
    node.save(roots);
  }
  return node.finish(output, [=](BackwardCall& call) {
    const Tensor saved_input = call.saved(0);
    const Tensor saved_roots = call.saved(1);
    Graph& g = call.graph;
    Tensor of_input = reuses_gradient ? std::move(call.gradients[0])
                                      : g.make(saved_input.elements, saved_input.dtype);
    const Tensor parts = g.make(g.multiprocessors() * columns, DType::kFp32);
    Tensor of_weight;
    {
      const Tensor sum = g.make(columns, DType::kFp32);
      of_weight = dtype == DType::kFp32 ? sum : g.make(columns, dtype);
    }
    return Tensors{std::move(of_input), call.wants(1) ? of_weight : Tensor{}};
  });
}

Tensor gated_norm(Graph& graph, const Tensor& weight, const Tensor& input, const Tensor& gate) {
  NodeBuilder node(graph, {&input, &gate, &weight});
  const std::int64_t columns = weight.elements;
  const DType dtype = weight.dtype;
  const Tensor output = graph.make(input.elements, input.dtype);
  const Tensor roots = graph.make(input.elements / columns, DType::kFp32);
  if (node.is_needed()) {
    node.save(input);
    node.save(gate);
    node.save(roots);
  }
  return node.finish(output, [=](BackwardCall& call) {
    const Tensor saved_input = call.saved(0);
    const Tensor saved_gate = call.saved(1);
    Graph& g = call.graph;
    const Tensor parts = g.make(g.multiprocessors() * columns, DType::kFp32);
    Tensor of_input = g.make(saved_input.elements, saved_input.dtype);
    Tensor of_gate = g.make(saved_gate.elements, saved_input.dtype);
    const Tensor sum = g.make(columns, DType::kFp32);
    const Tensor of_weight = dtype == DType::kFp32 ? sum : g.make(columns, dtype);
    return Tensors{std::move(of_input), std::move(of_gate), call.wants(2) ? of_weight : Tensor{}};
  });
}

Tensor liger_rotate(Graph& graph, const Tensor& input, const Tensor& cosines, const Tensor& sines) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(cosines);
    node.save(sines);
  }
  Tensor turned = input;
  return node.finish(std::move(turned),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

Tensor liger_swiglu(Graph& graph, const Tensor& gate, const Tensor& up) {
  NodeBuilder node(graph, {&gate, &up});
  if (node.is_needed()) {
    node.save(gate);
    node.save(up);
  }
  return node.finish(graph.make(gate.elements, gate.dtype), [](BackwardCall& call) {
    return Tensors{call.saved(0), call.saved(1)};
  });
}

}  // namespace shardplan::eager
