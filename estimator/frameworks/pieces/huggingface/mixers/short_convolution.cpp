#include "estimator/frameworks/pieces/huggingface/mixers/short_convolution.h"

namespace shardplan::huggingface {

using eager::Tensor;
using eager::Tensors;

Tensor short_convolution(eager::Graph& graph, ShortConvolution& mixer, const Tensor& input,
                         const ConvolutionSizes& sizes) {
  Tensor gated;
  {
    const Tensor rows = project(graph, mixer.input, input);
    const std::int64_t part = rows.elements / 3;
    const Tensors parts = eager::split_into(graph, rows, {part, part, part});
    const Tensor product = eager::multiply(graph, parts[0], parts[2]);
    const Tensor convolved =
        causal_convolution(graph, product, mixer.weight.data, mixer.bias.data, sizes);
    gated = eager::multiply(graph, parts[1], convolved);
  }
  return project(graph, mixer.output, gated);
}

}  // namespace shardplan::huggingface
