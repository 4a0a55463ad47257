#include "estimator/frameworks/pieces/huggingface/norms.h"

namespace shardplan::huggingface {
namespace {

using eager::Graph;
using eager::Tensor;

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

}  // namespace shardplan::huggingface
