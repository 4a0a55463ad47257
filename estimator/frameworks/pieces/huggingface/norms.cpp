#include "estimator/frameworks/pieces/huggingface/norms.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// x times the inverse of its root mean square, in fp32.
Tensor normed(Graph& graph, const Tensor& input, std::int64_t width) {
  const Tensor x = eager::to(graph, input, DType::kFp32);
  Tensor variance;
  {
    const Tensor squares = eager::square(graph, x);
    variance = eager::mean(graph, squares, width);
  }
  Tensor shifted = eager::shift(graph, variance);
  variance = {};
  const Tensor root = eager::reciprocal_root(graph, shifted);
  shifted = {};
  return eager::multiply(graph, x, root);
}

// native_layer_norm: saves its arguments and, of every row, mean and inverse deviation in fp32.
Tensor native_layer_norm(Graph& graph, const Tensor& input, const Tensor& weight,
                         const Tensor& bias) {
  NodeBuilder node(graph, {&input, &weight, &bias});
  const DType dtype = input.dtype;
  const std::int64_t rows = input.elements / weight.elements;
  const Tensor output = graph.make(input.elements, dtype);
  const Tensor means = graph.make(rows, DType::kFp32);
  const Tensor deviations = graph.make(rows, DType::kFp32);
  if (node.is_needed()) {
    for (const Tensor* tensor : {&bias, &input, &weight, &means, &deviations}) {
      node.save(*tensor);
    }
  }
  const std::int64_t width = weight.elements;
  return node.finish(output, [=](BackwardCall& call) {
    const Tensor saved_input = call.saved(1);
    const Tensor saved_means = call.saved(3);
    const Tensor saved_deviations = call.saved(4);
    Tensors gradients(3);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
      if (call.wants(i)) {
        gradients[i] = call.graph.make(i == 0 ? saved_input.elements : width, dtype);
      }
    }
    return gradients;
  });
}

}  // namespace

Tensor llama_norm(Graph& graph, const Norm& norm, const Tensor& input) {
  const Tensor wide = normed(graph, input, norm.width);
  const Tensor x = eager::to(graph, wide, input.dtype);
  return eager::multiply_rows(graph, norm.weight.data, x);
}

Tensor gemma_norm(Graph& graph, const Norm& norm, const Tensor& input) {
  Tensor x = normed(graph, input, norm.width);
  {
    const Tensor weight = eager::shift(graph, eager::to(graph, norm.weight.data, DType::kFp32));
    x = eager::multiply_by_row(graph, x, weight);
  }
  return eager::to(graph, x, input.dtype);
}

Tensor wide_norm(Graph& graph, const Norm& norm, const Tensor& input) {
  const Tensor x = normed(graph, input, norm.width);
  return eager::to(graph, eager::multiply_rows(graph, norm.weight.data, x), input.dtype);
}

Tensor plain_norm(Graph& graph, std::int64_t width, const Tensor& input) {
  return eager::to(graph, normed(graph, input, width), input.dtype);
}

Tensor gemma4_norm(Graph& graph, const Norm& norm, const Tensor& input) {
  Tensor x = eager::to(graph, input, DType::kFp32);
  {
    Tensor variance;
    {
      const Tensor squares = eager::square(graph, x);
      variance = eager::mean(graph, squares, norm.width);
    }
    const Tensor shifted = eager::shift(graph, variance);
    variance = {};
    const Tensor root = eager::power(graph, shifted);
    x = eager::multiply(graph, x, root);
  }
  if (norm.weight.data.is_defined()) {
    x = eager::multiply_by_row(graph, x, eager::to(graph, norm.weight.data, DType::kFp32));
  }
  return eager::to(graph, x, input.dtype);
}

Tensor centred_norm(Graph& graph, const Norm& norm, const Tensor& input) {
  Tensor x = eager::to(graph, input, DType::kFp32);
  const Tensor mean = eager::mean(graph, x, norm.width);
  Tensor variance;
  {
    const Tensor squares = eager::square(graph, eager::subtract(graph, x, mean));
    variance = eager::mean(graph, squares, norm.width);
  }
  {
    const Tensor centred = eager::subtract(graph, x, mean);
    Tensor shifted = eager::shift(graph, variance);
    const Tensor root = eager::reciprocal_root(graph, shifted);
    shifted = {};
    x = eager::multiply(graph, centred, root);
  }
  x = eager::multiply_rows(graph, eager::to(graph, norm.weight.data, DType::kFp32), x);
  return eager::to(graph, x, input.dtype);
}

Tensor layer_norm(Graph& graph, const Norm& norm, const Tensor& input) {
  const DType dtype = graph.autocast ? DType::kFp32 : input.dtype;
  const Tensor bias = eager::to(graph, norm.bias.data, dtype);
  const Tensor weight = eager::to(graph, norm.weight.data, dtype);
  return native_layer_norm(graph, eager::to(graph, input, dtype), weight, bias);
}

Tensor plus_one_layer_norm(Graph& graph, const Norm& norm, const Tensor& input) {
  const DType dtype = graph.autocast.value_or(input.dtype);
  const Tensor shifted = eager::shift(graph, norm.weight.data);
  const Tensor x = eager::to(graph, input, dtype);
  const Tensor weight = eager::to(graph, shifted, dtype);
  return native_layer_norm(graph, x, weight, eager::to(graph, norm.bias.data, dtype));
}

}  // namespace shardplan::huggingface
