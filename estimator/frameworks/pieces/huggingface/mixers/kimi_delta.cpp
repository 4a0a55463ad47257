#include "estimator/frameworks/pieces/huggingface/mixers/kimi_delta.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/mixers/convolution.h"
#include "estimator/frameworks/pieces/huggingface/mixers/delta_kernels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

Tensor convolved(Graph& graph, KimiDelta& mixer, const Tensor& input, const DeltaSizes& sizes) {
  Tensor mixed;
  {
    const Tensor query = project(graph, mixer.query, input);
    const Tensor key = project(graph, mixer.key, input);
    const Tensor value = project(graph, mixer.value, input);
    mixed = eager::cat(graph, Tensors{query, key, value});
  }
  if (!sizes.packages.convolutions) {
    mixed = eager::copied_back(graph, mixed);
  }
  mixed = activated_convolution(graph, mixed, mixer.convolution.data, {},
                                {.sequence = sizes.sequence,
                                 .taps = sizes.widths.convolution,
                                 .by_kernel = sizes.packages.convolutions});
  return eager::slice(graph, mixed, mixed.elements);  // the last tokens, which are all
}

// torch.where(input > 20, input, log): a mask of bytes; either gradient lies in zeros.
Tensor chosen(Graph& graph, const Tensor& mask, const Tensor& input, const Tensor& other) {
  NodeBuilder node(graph, {&input, &other});
  if (node.is_needed()) {
    node.save(mask);
  }
  const std::int64_t elements = input.elements;
  return node.finish(graph.make(elements, DType::kFp32), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    const Tensor zero = call.graph.make(1, DType::kFp32);
    Tensors gradients(2);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      gradients[i] = call.graph.make(elements, DType::kFp32);
    }
    return gradients;
  });
}

// log: saves what it takes.
Tensor logarithm(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(input);
  }
  return node.finish(graph.make(input.elements, DType::kFp32), [](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    return Tensors{call.graph.make(saved.elements, DType::kFp32)};
  });
}

// KimiLinearForgetGate: -exp(decay_log) * softplus(decay + step_bias) in fp32, by single operators.
Tensor decay_of(Graph& graph, KimiDelta& mixer, const Tensor& input) {
  const Tensor rows = project(graph, mixer.decay_up, project(graph, mixer.decay_down, input));
  Tensor shifted;
  {
    const Tensor wide = eager::to(graph, rows, DType::kFp32);
    shifted = eager::add(graph, wide, eager::to(graph, mixer.step_bias.data, DType::kFp32));
  }
  const Tensor rate =
      eager::exponential(graph, eager::to(graph, mixer.decay_log.data, DType::kFp32));
  Tensor soft;
  {
    const Tensor mask = graph.make(shifted.elements, DType::kBool);
    const Tensor logarithms =
        logarithm(graph, eager::shift(graph, eager::exponential(graph, shifted)));
    soft = chosen(graph, mask, shifted, logarithms);
  }
  return eager::multiply_rows(graph, eager::scale(graph, rate), soft);
}

// KimiLinearRMSNormGated: in fp32 from its input to the product with a sigmoid of the gate.
Tensor gated_norm(Graph& graph, const Norm& norm, const Tensor& input, const Tensor& gate) {
  Norm wide = {.weight = {}, .bias = {}, .width = norm.width};
  wide.weight.data = eager::to(graph, norm.weight.data, DType::kFp32);
  Tensor output = wide_norm(graph, wide, eager::to(graph, input, DType::kFp32));
  const Tensor opened = eager::sigmoid(graph, eager::to(graph, gate, DType::kFp32));
  output = eager::multiply(graph, output, opened);
  return eager::to(graph, output, input.dtype);
}

}  // namespace

Tensor kimi_delta(Graph& graph, KimiDelta& mixer, const Tensor& input, const DeltaSizes& sizes) {
  const std::int64_t width = sizes.tokens * sizes.widths.value_width();
  const Tensor mixed = convolved(graph, mixer, input, sizes);
  const Tensors parts = eager::split_into(graph, mixed, {width, width, width});
  const Tensor decay = decay_of(graph, mixer, input);
  const Tensor rate = eager::sigmoid(graph, project(graph, mixer.rates, input));
  const Tensor output = chunk_kda(
      graph, {.query = parts[0], .key = parts[1], .value = parts[2], .decay = decay, .rate = rate},
      sizes);
  const Tensor gate = project(graph, mixer.gate_up, project(graph, mixer.gate_down, input));
  return gated_norm(graph, mixer.norm, output, gate);
}

}  // namespace shardplan::huggingface
