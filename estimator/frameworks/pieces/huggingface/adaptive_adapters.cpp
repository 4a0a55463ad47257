#include "estimator/frameworks/pieces/huggingface/adaptive_adapters.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/attention.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

constexpr Label kOrthogonalityRow = {kActivations, "adapters.orthogonality", DType::kBf16,
                                     "A and B twice each, in the type of products, and r*r",
                                     &kAdapterGradientRow};

// A by a number for each of its rows, whose gradient is a sum.
Tensor scaled_factor(Graph& graph, const Linear& linear) {
  const Tensor& a = linear.a.data;
  const Tensor& scales = linear.scales.data;
  NodeBuilder node(graph, {&a, &scales});
  if (node.is_needed()) {
    node.save(a);
    node.save(scales);
  }
  const std::int64_t elements = a.elements;
  const std::int64_t rank = scales.elements;
  const DType dtype = a.dtype;
  return node.finish(graph.make(elements, dtype), [=](BackwardCall& call) {
    Tensors gradients(2);
    {
      const Tensor whole = call.graph.make(elements, dtype);
      gradients[1] = call.graph.make(rank, dtype);
    }
    gradients[0] = call.graph.make(elements, dtype);
    return gradients;
  });
}

// By a number of the GPU, which makes fp32 of narrower values.
Tensor divided(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  const Tensor divisor = graph.make(1, DType::kFp32);
  if (node.is_needed()) {
    node.save(divisor);
  }
  const std::int64_t elements = input.elements;
  return node.finish(graph.make(elements, DType::kFp32), [=](BackwardCall& call) {
    return Tensors{call.graph.make(elements, DType::kFp32)};
  });
}

// A view of a parameter is cast anew at every use, unlike the parameter itself.
Tensor cast_view(Graph& graph, const Tensor& parameter) {
  return graph.autocast ? eager::to(graph, parameter, *graph.autocast) : parameter;
}

// torch.norm in fp32 of a square matrix's distance from the identity; the norm is saved as well.
Tensor added_distance(Graph& graph, const Tensor& loss, const Tensor& product) {
  const std::int64_t elements = product.elements;
  const Tensor identity = graph.make(elements, product.dtype);
  const Tensor wide = eager::to(graph, eager::subtract(graph, product, identity), DType::kFp32);
  Tensor norm;
  {
    NodeBuilder node(graph, {&wide});
    norm = graph.make(1, DType::kFp32);
    if (node.is_needed()) {
      node.save(wide);
      node.save(norm);
    }
    norm = node.finish(std::move(norm), [=](BackwardCall& call) {
      return Tensors{call.graph.make(elements, DType::kFp32)};
    });
  }
  return eager::add(graph, loss, norm);
}

}  // namespace

Tensor adaptive_product(Graph& graph, const Linear& linear, const Tensor& input) {
  const std::int64_t rows = input.elements / linear.shape.inputs;
  const Tensor scaled = scaled_factor(graph, linear);
  const Tensor inner = attention_product(graph, input, scaled, rows * linear.rank);
  Tensor outer =
      attention_product(graph, inner, cast_view(graph, linear.b.data), rows * linear.shape.outputs);
  outer = eager::scale(graph, outer);
  return divided(graph, outer);
}

Tensor with_orthogonal_factors(Graph& graph, Tensor loss,
                               std::span<eager::Parameter* const> factors, std::int64_t rank) {
  const InRow row(graph.tape, kOrthogonalityRow);
  for (const eager::Parameter* factor : factors) {
    const Tensor transposed = cast_view(graph, factor->data);
    const Tensor plain = graph.autocast ? graph.cast_weight(factor->data) : factor->data;
    const bool is_a = factor->rows == rank;
    const Tensor product = is_a ? attention_product(graph, plain, transposed, rank * rank)
                                : attention_product(graph, transposed, plain, rank * rank);
    loss = added_distance(graph, loss, product);
  }
  return loss;
}

}  // namespace shardplan::huggingface
