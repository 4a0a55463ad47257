#include "estimator/frameworks/pieces/huggingface/mixers/chunks.h"

namespace shardplan::huggingface {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

Tensor padded(Graph& graph, const Tensor& input, std::int64_t elements) {
  NodeBuilder node(graph, {&input});
  const std::int64_t given = input.elements;
  const DType dtype = input.dtype;
  return node.finish(graph.make(elements, dtype),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(given, dtype)}; });
}

Tensor cumulative(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements;
  return node.finish(graph.make(elements, DType::kFp32), [=](BackwardCall& call) {
    const Tensor turned = call.graph.make(elements, DType::kFp32);
    const Tensor summed = call.graph.make(elements, DType::kFp32);
    return Tensors{call.graph.make(elements, DType::kFp32)};
  });
}

Tensor filled(Graph& graph, const Tensor& input, const Tensor& mask, std::int64_t elements) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(mask);
  }
  const DType dtype = input.dtype;
  return node.finish(graph.make(elements, dtype), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    return Tensors{call.graph.make(elements, dtype)};
  });
}

Tensor outer_product(Graph& graph, const Tensor& a, const Tensor& b, std::int64_t elements) {
  NodeBuilder node(graph, {&a, &b});
  if (node.is_needed()) {
    if (a.requires_grad()) {
      node.save(b);
    }
    if (b.requires_grad()) {
      node.save(a);
    }
  }
  const DType dtype = eager::promoted(a.dtype, b.dtype);
  return node.finish(graph.make(elements, dtype), [=](BackwardCall& call) {
    Tensors saved, gradients(2);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
      }
    }
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
      if (call.wants(i)) {
        gradients[i] = call.graph.make(elements, dtype);
      }
    }
    return gradients;
  });
}

}  // namespace shardplan::huggingface
