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

}  // namespace

// _convolution copies an input of three dimensions to lie channels before tokens, forward and
// backward; the depthwise kernel takes groups of one channel in bf16 and needs no workspace.
Tensor causal_convolution(Graph& graph, const Tensor& rows, const Tensor& weight,
                          const Tensor& bias, const ConvolutionSizes& sizes) {
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
  return eager::silu(graph, causal_convolution(graph, rows, weight, bias, sizes));
}

}  // namespace shardplan::huggingface
