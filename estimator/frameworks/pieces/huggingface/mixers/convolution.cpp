#include "estimator/frameworks/pieces/huggingface/mixers/convolution.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// causal_conv1d_fn takes rows as they lie, and weights in their own type; what it saves are its
// arguments, whether or not their gradients are asked for.
Tensor kernel_convolution(Graph& graph, const Tensor& rows, const Tensor& weight,
                          const Tensor& bias) {
  NodeBuilder node(graph, {&rows, &weight, &bias});
  if (node.is_needed()) {
    node.save(rows);
    node.save(weight);
    if (bias.is_defined()) {
      node.save(bias);
    }
  }
  const bool has_bias = bias.is_defined();
  return node.finish(graph.make(rows.elements, rows.dtype), [=](BackwardCall& call) {
    const Tensor saved_input = call.saved(0);
    const Tensor saved_weight = call.saved(1);
    const Tensor saved_bias = has_bias ? call.saved(2) : Tensor{};
    ConvolutionGradients made =
        kernel_convolution_backward(call.graph, saved_input, saved_weight, saved_bias, true);
    Tensors gradients(3);
    Tensor* const all[] = {&made.input, &made.weight, &made.bias};
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
      if (call.wants(i)) {
        gradients[i] = std::move(*all[i]);
      }
    }
    return gradients;
  });
}

}  // namespace

ConvolutionGradients kernel_convolution_backward(Graph& graph, const Tensor& input,
                                                 const Tensor& weight, const Tensor& bias,
                                                 bool makes_input) {
  ConvolutionGradients made;
  if (makes_input) {
    made.input = graph.make(input.elements, input.dtype);
  }
  const eager::InRow row(graph.tape, eager::kWeightGradientsRow);
  const auto in_type_of = [&graph](Tensor& gradient, const Tensor& parameter) {
    if (gradient.dtype != parameter.dtype) {
      gradient = graph.make(parameter.elements, parameter.dtype);
    }
  };
  made.weight = graph.make(weight.elements, DType::kFp32);
  if (bias.is_defined()) {
    made.bias = graph.make(bias.elements, DType::kFp32);
  }
  in_type_of(made.weight, weight);
  if (bias.is_defined()) {
    in_type_of(made.bias, bias);
  }
  return made;
}

// _convolution copies an input of three dimensions to lie channels before tokens, forward and
// backward; the depthwise kernel takes groups of one channel in bf16 and needs no workspace.
Tensor causal_convolution(Graph& graph, const Tensor& rows, const Tensor& weight,
                          const Tensor& bias, const ConvolutionSizes& sizes) {
  if (sizes.by_kernel) {
    return kernel_convolution(graph, rows, weight, bias);
  }
  const Tensor b = bias.is_defined() ? graph.cast_weight(bias) : Tensor{};
  const Tensor w = graph.cast_weight(weight);
  const Tensor x = eager::in_autocast(graph, rows);
  NodeBuilder node(graph, {&x, &w, &b});
  if (node.is_needed()) {
    node.save(x);
    node.save(w);
  }
  const std::int64_t elements = x.elements;
  const std::int64_t padded = elements / sizes.sequence * (sizes.sequence + sizes.taps - 1);
  const std::int64_t of_weight = w.elements;
  const std::int64_t of_bias = b.elements;
  const DType dtype = x.dtype;
  Tensor output;
  {
    const Tensor copy = graph.make(elements, dtype);
    output = graph.make(padded, dtype);
  }
  const Tensor whole = node.finish(std::move(output), [=](BackwardCall& call) {
    const Tensor saved_input = call.saved(0);
    Graph& g = call.graph;
    const Tensor copy = g.make(elements, dtype);
    Tensors gradients(3);
    if (call.wants(0)) {
      gradients[0] = g.make(elements, dtype);
    }
    if (call.wants(1)) {
      const eager::InRow row(g.tape, eager::kWeightGradientsRow);
      gradients[1] = g.make(of_weight, dtype);
    }
    if (call.wants(2)) {
      gradients[2] = g.make(of_bias, dtype);
    }
    return gradients;
  });
  return eager::slice(graph, whole, elements);
}

Tensor activated_convolution(Graph& graph, const Tensor& rows, const Tensor& weight,
                             const Tensor& bias, const ConvolutionSizes& sizes) {
  const Tensor output = causal_convolution(graph, rows, weight, bias, sizes);
  return sizes.by_kernel ? output : eager::silu(graph, output);
}

}  // namespace shardplan::huggingface
