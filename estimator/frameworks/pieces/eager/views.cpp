#include "estimator/frameworks/pieces/eager/views.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::eager {
namespace {

// Some elements of a tensor; their gradient lies in zeros of all of them.
Tensor part(Graph& graph, const Tensor& input, Tensor elements) {
  NodeBuilder node(graph, {&input});
  const std::int64_t all = input.elements;
  const DType dtype = input.dtype;
  return node.finish(std::move(elements),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(all, dtype)}; });
}

}  // namespace

Tensor slice(Graph& graph, const Tensor& input, std::int64_t elements) {
  return part(graph, input, input.viewed(elements));
}

Tensor index(Graph& graph, const Tensor& input, std::int64_t elements) {
  return part(graph, input, graph.make(elements, input.dtype));
}

Tensors split(Graph& graph, const Tensor& input, std::int64_t first_elements) {
  NodeBuilder node(graph, {&input});
  const std::int64_t all = input.elements;
  const DType dtype = input.dtype;
  return node.finish(Tensors{input.viewed(first_elements), input.viewed(all - first_elements)},
                     [=](BackwardCall& call) { return Tensors{call.graph.make(all, dtype)}; });
}

Tensors split_into(Graph& graph, const Tensor& input, const std::vector<std::int64_t>& elements) {
  NodeBuilder node(graph, {&input});
  const std::int64_t all = input.elements;
  const DType dtype = input.dtype;
  Tensors parts;
  for (const std::int64_t each : elements) { parts.push_back(input.viewed(each)); }
  return node.finish(std::move(parts),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(all, dtype)}; });
}

Tensor cat(Graph& graph, const Tensors& parts) {
  std::vector<const Tensor*> inputs;
  std::vector<std::int64_t> elements;
  std::int64_t all = 0;
  for (const Tensor& part : parts) {
    inputs.push_back(&part);
    elements.push_back(part.elements);
    all += part.elements;
  }
  NodeBuilder node(graph, inputs);
  return node.finish(graph.make(all, parts.front().dtype), [=](BackwardCall& call) {
    const Tensor gradient = std::move(call.gradients[0]);
    Tensors gradients;
    for (const std::int64_t each : elements) { gradients.push_back(gradient.viewed(each)); }
    return gradients;
  });
}

// Gradients are views of the whole one.
Tensor cat(Graph& graph, const Tensor& a, const Tensor& b) {
  NodeBuilder node(graph, {&a, &b});
  const std::int64_t of_a = a.elements;
  const std::int64_t of_b = b.elements;
  return node.finish(graph.make(of_a + of_b, a.dtype), [=](BackwardCall& call) {
    const Tensor gradient = std::move(call.gradients[0]);
    return Tensors{gradient.viewed(of_a), gradient.viewed(of_b)};
  });
}

Tensor laid_out(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  return node.finish(graph.make(input.elements, input.dtype),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

Tensor copied_back(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  Tensor view = input;
  return node.finish(std::move(view), [](BackwardCall& call) {
    const Tensor& gradient = call.gradients[0];
    return Tensors{call.graph.make(gradient.elements, gradient.dtype)};
  });
}

Tensor rotate_half(Graph& graph, const Tensor& input) {
  const Tensor first = slice(graph, input, input.elements / 2);
  const Tensor second = slice(graph, input, input.elements / 2);
  return cat(graph, scale(graph, second), first);
}

}  // namespace shardplan::eager
