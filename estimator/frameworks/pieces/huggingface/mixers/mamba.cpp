#include "estimator/frameworks/pieces/huggingface/mixers/mamba.h"

#include "estimator/frameworks/pieces/huggingface/mixers/convolution.h"
#include "estimator/frameworks/pieces/huggingface/mixers/mamba_kernels.h"
#include "estimator/frameworks/pieces/huggingface/mixers/mamba_scan.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// Bounds in place of time_step_limit: a mask of bytes for each, and where they let the gradient
// through.
Tensor bounded(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(input);
  }
  return node.finish(graph.make(input.elements, input.dtype), [](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    const Tensor mask = call.graph.make(saved.elements, DType::kBool);
    const Tensor other = call.graph.make(saved.elements, DType::kBool);
    return Tensors{call.graph.make(saved.elements, saved.dtype)};
  });
}

Tensor step_sizes(Graph& graph, const Mamba& mixer, const Tensor& steps) {
  Tensor shifted = eager::add(graph, steps, mixer.step_bias.data);
  if (graph.autocast) {
    shifted = eager::to(graph, shifted, DType::kFp32);
  }
  return bounded(graph, eager::softplus(graph, shifted));
}

// Of the scan's output in fp32 times silu of the gate; groups have a root each. Without a norm the
// gate is activated in its own type.
Tensor gated_norm(Graph& graph, const Norm& norm, const Tensor& input, const Tensor& gate) {
  if (norm.width == 0) {
    const Tensor activation = eager::silu(graph, gate);
    return eager::multiply(graph, input, activation);
  }
  Tensor x;
  {
    const Tensor activation = eager::silu(graph, eager::to(graph, gate, DType::kFp32));
    x = eager::multiply(graph, input, activation);
  }
  return llama_norm(graph, norm, x);
}

// Falcon-H1 scales what goes in by a number, and what comes out by column.
Tensor projected_rows(Graph& graph, Mamba& mixer, const Tensor& input) {
  if (!mixer.column_scales.is_defined()) {
    return project(graph, mixer.input, input);
  }
  const Tensor rows = project(graph, mixer.input, eager::scale(graph, input));
  return eager::multiply_by_row(graph, rows, mixer.column_scales);
}

Tensor decay_of(Graph& graph, const Mamba& mixer) {
  return eager::scale(
      graph, eager::exponential(graph, eager::to(graph, mixer.decay_log.data, DType::kFp32)));
}

}  // namespace

Tensor combined_mamba(Graph& graph, Mamba& mixer, const Tensor& input, const MambaSizes& sizes) {
  const Tensor projected = projected_rows(graph, mixer, input);
  return mamba_split_conv1d_scan_combined(graph, mixer, projected, decay_of(graph, mixer), sizes);
}

Tensor mamba(Graph& graph, Mamba& mixer, const Tensor& input, const MambaSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  const std::int64_t inner = sizes.tokens * widths.inner;
  const std::int64_t rows = sizes.tokens * widths.groups * widths.state;
  const std::int64_t steps = sizes.tokens * widths.num_heads;
  const Tensor projected = projected_rows(graph, mixer, input);
  const Tensor decay = decay_of(graph, mixer);
  const Tensors parts = eager::split_into(graph, projected, {inner, inner + 2 * rows, steps});
  const Tensor convolved =
      activated_convolution(graph, parts[1], mixer.convolution.data, mixer.convolution_bias.data,
                            {.sequence = sizes.sequence,
                             .taps = widths.convolution,
                             .by_kernel = sizes.packages.convolutions});
  const Tensors scanned = eager::split_into(graph, convolved, {inner, rows, rows});
  const Tensor output = mamba_scan(graph,
                                   {.values = scanned[0],
                                    .input_rows = scanned[1],
                                    .output_rows = scanned[2],
                                    .steps = step_sizes(graph, mixer, parts[2]),
                                    .decays = decay,
                                    .skip = mixer.skip.data},
                                   sizes);
  const Tensor normed = gated_norm(graph, mixer.norm, output, parts[0]);
  return eager::to(graph, normed, input.dtype);
}

}  // namespace shardplan::huggingface
