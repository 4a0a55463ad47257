#include "estimator/frameworks/pieces/huggingface/activations.h"

#include <utility>

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// Functions that autocast runs in fp32.
Tensor in_fp32(Graph& graph, const Tensor& input) {
  return graph.autocast ? eager::to(graph, input, DType::kFp32) : input;
}

// The smaller of each element and a number: where(self == number, gradient / 2, gradient), of which
// what is larger is filled with zeros in place.
Tensor at_most(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(input);
  }
  return node.finish(graph.make(input.elements, input.dtype), [](BackwardCall& call) {
    const Tensor self = call.saved(0);
    Graph& g = call.graph;
    Tensor gradient;
    {
      const Tensor is_equal = g.make(self.elements, DType::kBool);
      const Tensor halved = g.make(self.elements, self.dtype);
      gradient = g.make(self.elements, self.dtype);
    }
    const Tensor is_larger = g.make(self.elements, DType::kBool);
    return Tensors{std::move(gradient)};
  });
}

// expm1: gradient * (result + 1).
Tensor exponential_less_one(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  const Tensor output = graph.make(input.elements, input.dtype);
  if (node.is_needed()) {
    node.save(output);
  }
  return node.finish(output, [](BackwardCall& call) {
    const Tensor result = call.saved(0);
    const Tensor shifted = call.graph.make(result.elements, result.dtype);
    return Tensors{call.graph.make(result.elements, result.dtype)};
  });
}

// One of two tensors by a condition, which is saved; each gets the gradient with zeros elsewhere.
Tensor where(Graph& graph, const Tensor& condition, const Tensor& a, const Tensor& b) {
  NodeBuilder node(graph, {&a, &b});
  if (node.is_needed()) {
    node.save(condition);
  }
  const std::int64_t elements = a.elements;
  const DType dtype = a.dtype;
  return node.finish(graph.make(elements, dtype), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    Tensor of_b = call.graph.make(elements, dtype);
    return Tensors{call.graph.make(elements, dtype), std::move(of_b)};
  });
}

}  // namespace

Tensor squared_relu(Graph& graph, const Tensor& input) {
  const Tensor positive = eager::relu(graph, input);
  return eager::square(graph, in_fp32(graph, positive));
}

// A power of three saves, makes and leaves as much as a square. In the order of its source: half of
// the input is the first factor and made first.
Tensor new_gelu(Graph& graph, const Tensor& input) {
  const Tensor half = eager::scale(graph, input);
  Tensor inner;
  {
    Tensor cube = eager::square(graph, in_fp32(graph, input));
    cube = eager::scale(graph, cube);
    inner = eager::add(graph, input, cube);
  }
  inner = eager::scale(graph, inner);
  inner = eager::tanh(graph, inner);
  inner = eager::shift(graph, inner);
  return eager::multiply(graph, half, inner);
}

Tensor activate(Graph& graph, Activation activation, const Tensor& input) {
  switch (activation) {
    case Activation::kSilu:
    case Activation::kGelu: return eager::silu(graph, input);
    case Activation::kNewGelu: return new_gelu(graph, input);
    case Activation::kRelu: return eager::relu(graph, input);
    case Activation::kReluSquared: return squared_relu(graph, input);
    case Activation::kXielu:
    case Activation::kClampedSwiglu: break;
  }
  return {};
}

Tensor xielu(Graph& graph, const XieluWeights& weights, const Tensor& input) {
  const Tensor positive = eager::softplus(graph, in_fp32(graph, weights.positive.data));
  const Tensor negative =
      eager::shift(graph, eager::softplus(graph, in_fp32(graph, weights.negative.data)));
  const Tensor condition = graph.make(input.elements, DType::kBool);
  Tensor upper;
  {
    const Tensor squared = eager::multiply(graph, eager::multiply(graph, positive, input), input);
    upper = eager::add(graph, squared, eager::scale(graph, input));
  }
  Tensor lower;
  {
    Tensor scaled;
    {
      const Tensor exponential = exponential_less_one(graph, in_fp32(graph, at_most(graph, input)));
      const Tensor difference = eager::subtract(graph, exponential, input);
      scaled = eager::multiply(graph, difference, negative);
    }
    lower = eager::add(graph, scaled, eager::scale(graph, input));
  }
  return where(graph, condition, upper, lower);
}

}  // namespace shardplan::huggingface
