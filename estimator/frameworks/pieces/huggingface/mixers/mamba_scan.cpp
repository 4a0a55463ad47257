#include "estimator/frameworks/pieces/huggingface/mixers/mamba_scan.h"

#include <utility>

#include "estimator/frameworks/pieces/huggingface/mixers/chunks.h"
#include "estimator/plan/units.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// In fp32, and for every head of its group (repeat_interleave, which copies).
Tensor by_head(Graph& graph, const Tensor& input, const MambaSpec& widths) {
  const Tensor wide = eager::to(graph, input, DType::kFp32);
  NodeBuilder node(graph, {&wide});
  const std::int64_t elements = wide.elements / widths.groups * widths.num_heads;
  return node.finish(graph.make(elements, DType::kFp32),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

// Sums of all segments of rows of `width` decays (segment_sum): expanded and masked, summed, masked
// again, and its exponential.
Tensor segment_decays(Graph& graph, const Tensor& decays, std::int64_t width) {
  const auto mask = [&] {
    const Tensor ones = graph.make(width * width, DType::kBool);
    const Tensor lower = graph.make(width * width, DType::kBool);
    return graph.make(width * width, DType::kBool);
  };
  const std::int64_t elements = decays.elements * width;
  Tensor sums;
  {
    const Tensor expanded = filled(graph, decays, mask(), elements);
    sums = cumulative(graph, expanded);
  }
  sums = filled(graph, sums, mask(), elements);
  return eager::exponential(graph, sums);
}

// A product of both, made whole, and its sum over `width`.
Tensor contracted(Graph& graph, const Tensor& a, const Tensor& b, std::int64_t elements,
                  std::int64_t width) {
  return eager::sum(graph, outer_product(graph, a, b, elements), width);
}

struct Scanned {
  Tensor values, input_rows, output_rows;
  Tensor decays;  // summed along each chunk
};

// Scores of pairs of tokens of a chunk, weighted by their decays, times values.
Tensor within_chunks(Graph& graph, const Scanned& scanned, const Tensor& decays,
                     const MambaSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  const std::int64_t segments = decays.elements * widths.chunk;
  const Tensor segment = segment_decays(graph, decays, widths.chunk);
  const Tensor scores = contracted(graph, scanned.output_rows, scanned.input_rows,
                                   segments * widths.state, widths.state);
  const Tensor weights = contracted(graph, scores, segment, segments, 1);
  return contracted(graph, weights, scanned.values, segments * widths.head_dim, widths.chunk);
}

// States of all chunks, each of those before it.
Tensor states_before(Graph& graph, const Scanned& scanned, std::int64_t chunks,
                     const MambaSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  const std::int64_t rows = scanned.decays.elements;
  const std::int64_t of_chunks = rows / widths.chunk * widths.head_dim * widths.state;
  Tensor states;
  {
    const Tensor last = eager::slice(graph, scanned.decays, rows / widths.chunk);
    const Tensor decay = eager::exponential(graph, eager::subtract(graph, last, scanned.decays));
    const Tensor decayed = eager::multiply(graph, scanned.input_rows, decay);
    states = contracted(graph, decayed, scanned.values, of_chunks * widths.chunk, widths.chunk);
  }
  const Tensor none = graph.make(of_chunks / chunks, DType::kFp32);
  states = eager::cat(graph, none, states);
  const std::int64_t sequences = sizes.tokens / sizes.sequence;
  const Tensor ends = eager::slice(graph, scanned.decays, rows / widths.chunk);
  const Tensor padded_ends = padded(graph, ends, sequences * widths.num_heads * (chunks + 1));
  const Tensor decay = segment_decays(graph, padded_ends, chunks + 1);
  const Tensor all = contracted(graph, decay, states, states.elements * (chunks + 1), chunks + 1);
  return eager::slice(graph, all, of_chunks);
}

}  // namespace

Tensor mamba_scan(Graph& graph, const ScanInputs& inputs, const MambaSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  const std::int64_t chunks = div_ceil(sizes.sequence, widths.chunk);
  const auto with_padding = [&](const Tensor& tensor) {
    return padded(graph, tensor, tensor.elements / sizes.sequence * chunks * widths.chunk);
  };
  Scanned scanned;
  scanned.values = eager::to(graph, inputs.values, DType::kFp32);
  scanned.input_rows = by_head(graph, inputs.input_rows, widths);
  scanned.output_rows = by_head(graph, inputs.output_rows, widths);
  const Tensor skipped = eager::multiply(graph, with_padding(scanned.values), inputs.skip);
  scanned.values = eager::multiply(graph, scanned.values, inputs.steps);
  Tensor decays = eager::multiply_rows(graph, inputs.decays, inputs.steps);
  {
    const Scanned given = scanned;
    scanned.values = with_padding(given.values);
    decays = with_padding(decays);
    scanned.input_rows = with_padding(given.input_rows);
    scanned.output_rows = with_padding(given.output_rows);
  }
  scanned.decays = cumulative(graph, decays);
  const Tensor within = within_chunks(graph, scanned, decays, sizes);
  const Tensor states = states_before(graph, scanned, chunks, sizes);
  const Tensor decay = eager::exponential(graph, scanned.decays);
  const Tensor products =
      outer_product(graph, scanned.output_rows, states, scanned.values.elements * widths.state);
  const Tensor before = eager::multiply(graph, eager::sum(graph, products, widths.state), decay);
  Tensor output = eager::add(graph, within, before);
  output = eager::add(graph, output, skipped);
  return eager::slice(graph, output, inputs.values.elements);
}

}  // namespace shardplan::huggingface
