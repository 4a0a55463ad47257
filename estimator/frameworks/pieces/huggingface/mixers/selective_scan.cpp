#include "estimator/frameworks/pieces/huggingface/mixers/selective_scan.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/huggingface/attention.h"
#include "estimator/frameworks/pieces/huggingface/mixers/chunks.h"
#include "estimator/frameworks/pieces/huggingface/mixers/convolution.h"
#include "estimator/frameworks/pieces/huggingface/mixers/mamba_kernels.h"

namespace shardplan::huggingface {
namespace {

using eager::Graph;
using eager::Tensor;
using eager::Tensors;

// The scan is played in so many pieces, whose tensors are those of all their tokens: thousands of
// tokens make and keep the same bytes by far fewer operators. The first and the last token are
// pieces of their own, as nothing keeps the last state, and the first one's is given.
constexpr std::int64_t kPieces = 64;

// The first token of a piece.
std::int64_t begin_of(std::int64_t piece, std::int64_t pieces, std::int64_t tokens) {
  if (pieces == tokens || piece == 0) {
    return piece;
  }
  return piece == pieces ? tokens : 1 + (piece - 1) * (tokens - 2) / (pieces - 2);
}

struct Selected {
  Tensor values;  // behind the convolution
  Tensor steps;   // without their bias, then as sizes
  Tensor input_rows, output_rows;
};

// A quantized layer is called, and its bias taken off again; else its weight alone is multiplied.
Tensor wide_steps(Graph& graph, SelectiveScan& mixer, const Tensor& steps) {
  if (mixer.steps.quantized.kind != Quantization::kNone) {
    return eager::subtract(graph, project(graph, mixer.steps, steps), mixer.steps.bias.data);
  }
  eager::LinearShape shape = mixer.steps.shape;
  shape.is_function = false;
  return eager::linear(graph, steps, mixer.steps.weight.data, shape);
}

Selected selected(Graph& graph, SelectiveScan& mixer, const Tensor& convolved,
                  const SelectiveSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  // Rows of several sequences lie channels before tokens, and are copied for the product.
  const bool is_copied = sizes.tokens > sizes.sequence && !sizes.packages.convolutions;
  const Tensor rows = is_copied ? eager::laid_out(graph, convolved) : convolved;
  const Tensor projected = project(graph, mixer.selection, rows);
  const std::int64_t states = sizes.tokens * widths.state;
  const Tensors parts =
      eager::split_into(graph, projected, {sizes.tokens * widths.step_rank, states, states});
  const Tensor ranks = llama_norm(graph, mixer.step_norm, parts[0]);
  Selected found = {.values = convolved, .steps = {}, .input_rows = {}, .output_rows = {}};
  found.input_rows = llama_norm(graph, mixer.input_norm, parts[1]);
  found.output_rows = llama_norm(graph, mixer.output_norm, parts[2]);
  found.steps = wide_steps(graph, mixer, ranks);
  return found;
}

Tensor step_sizes(Graph& graph, const SelectiveScan& mixer, const Tensor& steps) {
  const Tensor bias =
      eager::to(graph, eager::to(graph, mixer.steps.bias.data, DType::kFp32), steps.dtype);
  Tensor shifted = eager::add(graph, steps, bias);
  if (graph.autocast) {  // which runs softplus in fp32
    shifted = eager::to(graph, shifted, DType::kFp32);
  }
  return eager::softplus(graph, shifted);
}

// matmul of a weight with transposed rows folds these into one product, which lies tokens before
// channels and is copied.
Tensor scanned_by_kernel(Graph& graph, const SelectiveScan& mixer, const Selected& chosen,
                         const Tensor& gate, const Tensor& decay_rates,
                         const SelectiveSizes& sizes) {
  const Tensor steps = eager::laid_out(graph, chosen.steps);
  return selective_scan_fn(graph,
                           {.values = chosen.values,
                            .steps = steps,
                            .decays = decay_rates,
                            .input_rows = chosen.input_rows,
                            .output_rows = chosen.output_rows,
                            .skip = eager::to(graph, mixer.skip.data, DType::kFp32),
                            .gate = gate,
                            .step_bias = eager::to(graph, mixer.steps.bias.data, DType::kFp32)},
                           sizes);
}

// Every token's state is the last one's, decayed, and what enters; products read it in the type of
// the stream.
Tensor scanned(Graph& graph, const Selected& chosen, const Tensor& decay_rates, DType dtype,
               const SelectiveSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  const std::int64_t all = sizes.tokens * widths.inner * widths.state;
  const std::int64_t pieces = std::min(kPieces, sizes.sequence);
  const Tensor decays =
      eager::exponential(graph, outer_product(graph, decay_rates, chosen.steps, all));
  const Tensor rows =
      outer_product(graph, chosen.steps, eager::to(graph, chosen.input_rows, DType::kFp32), all);
  const Tensor entering =
      outer_product(graph, rows, eager::to(graph, chosen.values, DType::kFp32), all);
  Tensor state = graph.make(all / sizes.sequence, dtype);
  Tensors outputs;
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const std::int64_t tokens =
        begin_of(piece + 1, pieces, sizes.sequence) - begin_of(piece, pieces, sizes.sequence);
    const auto share = [&](std::int64_t elements) { return elements / sizes.sequence * tokens; };
    state = state.viewed(share(all));
    const Tensor decayed = eager::multiply(graph, eager::slice(graph, decays, share(all)), state);
    state = eager::add(graph, decayed, eager::slice(graph, entering, share(all)));
    const Tensor narrow = eager::to(graph, state, dtype);
    const Tensor leaving =
        eager::slice(graph, chosen.output_rows, share(chosen.output_rows.elements));
    outputs.push_back(
        attention_product(graph, narrow, leaving, share(sizes.tokens * widths.inner)));
  }
  return eager::cat(graph, outputs);
}

}  // namespace

Tensor selective_scan(Graph& graph, SelectiveScan& mixer, const Tensor& input,
                      const SelectiveSizes& sizes) {
  const std::int64_t inner = sizes.tokens * sizes.widths.inner;
  const Tensor projected = project(graph, mixer.input, input);
  const Tensor decay_rates = eager::scale(
      graph, eager::exponential(graph, eager::to(graph, mixer.decay_log.data, DType::kFp32)));
  const Tensors parts = eager::split_into(graph, projected, {inner, inner});
  const Tensor convolved =
      activated_convolution(graph, parts[0], mixer.convolution.data, mixer.convolution_bias.data,
                            {.sequence = sizes.sequence,
                             .taps = sizes.widths.convolution,
                             .by_kernel = sizes.packages.convolutions});
  Selected chosen = selected(graph, mixer, convolved, sizes);
  if (sizes.packages.scans) {
    const Tensor output = scanned_by_kernel(graph, mixer, chosen, parts[1], decay_rates, sizes);
    return eager::to(graph, output, input.dtype);
  }
  chosen.steps = step_sizes(graph, mixer, chosen.steps);
  const Tensor skip = eager::to(graph, mixer.skip.data, DType::kFp32);
  Tensor output = scanned(graph, chosen, decay_rates, input.dtype, sizes);
  output = eager::add(graph, output, eager::multiply_by_row(graph, convolved, skip));
  output = eager::multiply(graph, output, eager::silu(graph, parts[1]));
  return eager::to(graph, output, input.dtype);
}

}  // namespace shardplan::huggingface
