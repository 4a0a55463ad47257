#include "estimator/frameworks/pieces/huggingface/mixers/mamba_kernels.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/mixers/convolution.h"
#include "estimator/plan/units.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

constexpr DType kWide = DType::kFp32;

// Elements of all tokens, and what the kernels are cut into.
struct ScanElements {
  std::int64_t inner = 0;
  std::int64_t matrix = 0;    // of what enters the state, and of what reads it
  std::int64_t channels = 0;  // that are convolved: inner and both matrices
  std::int64_t rows = 0;      // channels, gate and steps
  std::int64_t heads = 0;
  std::int64_t padded_heads = 0;  // of whole chunks
  std::int64_t groups = 0;
  std::int64_t states = 0;     // one for each chunk
  std::int64_t last = 0;       // one for each sequence
  std::int64_t pairs = 0;      // of tokens within chunks, for each group
  std::int64_t splits = 1;     // of a group's heads, which backward sums one by one
  std::int64_t norm_rows = 1;  // of blocks that sum the gradient of the norm's weight
  std::int64_t chunk = 0;
  std::int64_t num_states = 0;  // chunks times heads
  bool is_copied = false;       // channels lie at no multiple of 8
  DType dtype = DType::kBf16;
};

// _chunk_state_bwd_db, _chunk_scan_bwd_dC and _chunk_scan_bwd_dcb share heads out over the GPU;
// _layer_norm_bwd has warps by the width of a group.
ScanElements elements_of(const Graph& graph, const MambaSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  const std::int64_t sequences = sizes.tokens / sizes.sequence;
  const std::int64_t chunks = sequences * div_ceil(sizes.sequence, widths.chunk);
  const std::int64_t ratio = widths.num_heads / widths.groups;
  const std::int64_t together = std::clamp<std::int64_t>(
      div_ceil(chunks * widths.num_heads, graph.multiprocessors()), 1, ratio);
  const std::int64_t of_group = widths.inner / widths.groups;
  const auto block = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(of_group)));
  const std::int64_t warps = std::clamp<std::int64_t>(block / 256, 1, 8);
  const std::int64_t columns =
      2 * widths.inner + 2 * widths.groups * widths.state + widths.num_heads;
  ScanElements of;
  of.inner = sizes.tokens * widths.inner;
  of.matrix = sizes.tokens * widths.groups * widths.state;
  of.channels = of.inner + 2 * of.matrix;
  of.rows = sizes.tokens * columns;
  of.heads = sizes.tokens * widths.num_heads;
  of.padded_heads = chunks * widths.chunk * widths.num_heads;
  of.groups = sizes.tokens * widths.groups;
  of.states = chunks * widths.inner * widths.state;
  of.last = sequences * widths.inner * widths.state;
  of.pairs = chunks * widths.groups * widths.chunk * widths.chunk;
  of.splits = div_ceil(ratio, together);
  of.norm_rows =
      div_ceil(graph.multiprocessors() * div_ceil(std::int64_t{4}, warps), widths.groups);
  of.chunk = widths.chunk;
  of.num_states = chunks * widths.num_heads;
  of.is_copied = columns % 8 != 0;
  return of;
}

// Triton's benchmark clears a buffer between runs of a kernel (triton 3.6 backends/nvidia/driver.py
// get_empty_cache_for_benchmark), of which the fullest kernel counts.
constexpr std::int64_t kTuningBytes = std::int64_t{256} << 20;
void tune(Graph& graph, KernelTuning* tuning, bool KernelTuning::*direction) {
  if (tuning == nullptr || std::exchange(tuning->*direction, true)) {
    return;
  }
  const eager::InRow row(graph.tape, kTuningRow);
  const Tensor cleared = graph.make(kTuningBytes, DType::kBool);
}

Tensor copied_channels(Graph& graph, const ScanElements& of, DType dtype) {
  return of.is_copied ? graph.make(of.channels, dtype) : Tensor{};
}

struct Scanned {
  Tensor output;       // gated, where the scan has the gate
  Tensor before_gate;  // saved
};

// Saves those that are there; gives them back at their places.
class SavedArguments {
 public:
  SavedArguments(NodeBuilder& node, const Tensors& tensors) {
    for (const Tensor& tensor : tensors) {
      is_there_.push_back(tensor.is_defined());
      if (tensor.is_defined() && node.is_needed()) {
        node.save(tensor);
      }
    }
  }
  Tensors of(const BackwardCall& call) const {
    Tensors saved;
    std::size_t place = 0;
    for (const bool is_there : is_there_) {
      saved.push_back(is_there ? call.saved(place++) : Tensor{});
    }
    return saved;
  }

 private:
  std::vector<bool> is_there_;
};

Tensors wanted(const BackwardCall& call, Tensors gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!call.wants(i)) {
      gradients[i] = {};
    }
  }
  return gradients;
}

// _mamba_chunk_scan_combined_fwd behind the convolution.
Scanned scan_forward(Graph& graph, const ScanElements& of, DType dtype, bool has_gate,
                     KernelTuning* tuning) {
  Scanned scanned;
  const Tensor steps = graph.make(of.padded_heads, kWide);
  const Tensor decays = graph.make(of.padded_heads, kWide);
  Tensor wide_states = graph.make(of.states, kWide);
  const Tensor states = graph.make(of.states, dtype);
  const Tensor last = graph.make(of.last, kWide);
  wide_states = {};
  const Tensor scores = graph.make(of.pairs, kWide);
  scanned.output = graph.make(of.inner, dtype);
  scanned.before_gate = has_gate ? graph.make(of.inner, dtype) : scanned.output;
  tune(graph, tuning, &KernelTuning::forward);
  return scanned;
}

// A sum over a part that is made first.
Tensor summed_parts(Graph& graph, std::int64_t elements, std::int64_t parts) {
  const Tensor whole = graph.make(elements * parts, kWide);
  return graph.make(elements, kWide);
}

// _state_passing_bwd: states and their gradients in the type of the values, and a sum for each
// state of blocks of 64 of its numbers.
Tensors passed_back(Graph& graph, const ScanElements& of, DType dtype) {
  Tensors passed = {graph.make(of.states, dtype), graph.make(of.states, dtype)};
  const Tensor parts =
      graph.make(of.num_states * div_ceil(of.states / of.num_states, std::int64_t{64}), kWide);
  passed.push_back(graph.make(of.num_states, kWide));
  return passed;
}

// _mamba_chunk_scan_combined_bwd, whose tensors live until it returns; gradients of the values, of
// both matrices and of steps are parts of tensors that are there. `gated`: what the gate's
// derivative leaves, the output once more and its gradient in front of the gate. Returns the
// gradient of `skip`, one number a head.
Tensor scan_backward(Graph& graph, const ScanElements& of, const Tensor& skip, Tensors& gated,
                     KernelTuning* tuning) {
  const DType dtype = of.dtype;
  const Tensor steps_in = graph.make(of.heads, dtype);
  const Tensor steps = graph.make(of.padded_heads, kWide);
  const Tensor decays = graph.make(of.padded_heads, kWide);
  const Tensor scores = graph.make(of.pairs, kWide);
  Tensor wide_states = graph.make(of.states, kWide);
  Tensor states = graph.make(of.states, kWide);
  const Tensor last = graph.make(of.last, kWide);
  wide_states = {};
  const std::int64_t of_skip = div_ceil(of.chunk, std::int64_t{32}) * of.num_states;
  Tensor of_gated_skips;
  if (!gated.empty()) {
    const Tensor parts = graph.make(of_skip, kWide);
    for (Tensor& tensor : gated) { tensor = graph.make(of.inner, dtype); }
    of_gated_skips = graph.make(skip.elements, skip.dtype);
  }
  Tensor state_gradients = graph.make(of.states, kWide);
  const Tensors passed = passed_back(graph, of, dtype);
  state_gradients = {};
  states = {};
  Tensor step_gradients;
  {
    const Tensor parts = graph.make(of_skip, kWide);
    step_gradients = graph.make(of.padded_heads, kWide);
  }
  Tensor of_skips = graph.make(skip.elements, skip.dtype);
  const Tensor next_decays = graph.make(of.padded_heads, kWide);
  const Tensor entering = summed_parts(graph, of.matrix, of.splits);
  Tensor previous_decays = graph.make(of.padded_heads, kWide);
  const Tensor leaving = summed_parts(graph, of.matrix, of.splits);
  Tensor score_gradients;
  {
    const Tensor parts = graph.make(of.pairs * of.splits, kWide);
    tune(graph, tuning, &KernelTuning::backward);
    score_gradients = graph.make(of.pairs, kWide);
  }
  Tensor turned = graph.make(of.padded_heads, kWide);
  const Tensor sums = std::exchange(turned, graph.make(of.padded_heads, kWide));
  const Tensor summed_decays = graph.make(of.padded_heads, kWide);
  turned = {};
  const Tensor decay_gradients =
      summed_parts(graph, of.padded_heads, div_ceil(of.chunk, std::int64_t{32}));
  const Tensor both = graph.make(of.padded_heads, kWide);
  return of_skips;
}

// _layer_norm_bwd: the gradients of the input and of the weight, of which every block has a part.
std::pair<Tensor, Tensor> norm_backward(Graph& graph, const ScanElements& of, DType dtype,
                                        const Tensor& weight) {
  Tensor of_input = graph.make(of.inner, dtype);
  const Tensor parts = graph.make(of.norm_rows * weight.elements, kWide);
  Tensor of_weight = graph.make(weight.elements, kWide);
  if (weight.dtype != kWide) {
    of_weight = graph.make(weight.elements, weight.dtype);
  }
  return {std::move(of_input), std::move(of_weight)};
}

// The places of what the function saves, and of the gradients that it returns.
enum Place : std::size_t { kRows, kConvolution, kBias, kStepBias, kDecay, kSkip, kNorm, kOutput };
constexpr std::size_t kPlaces = kOutput + 1;

// MambaSplitConv1dScanCombinedFn.backward.
Tensors combined_backward(BackwardCall& call, const ScanElements& of, const Tensors& saved,
                          KernelTuning* tuning) {
  Graph& graph = call.graph;
  const DType dtype = saved[kRows].dtype;
  const Tensor& norm = saved[kNorm];
  Tensors made(kPlaces);
  const Tensor output_again = graph.make(of.inner, dtype);
  const Tensor convolved = [&] {
    const Tensor copy = copied_channels(graph, of, dtype);
    return graph.make(of.channels, dtype);
  }();
  made[kRows] = graph.make(of.rows, dtype);
  const Tensor channel_gradients = graph.make(of.channels, dtype);
  const Tensor of_normed = graph.make_product(of.inner, dtype);
  Tensor of_scanned;
  Tensors gated(norm.is_defined() ? 0 : 2);
  if (norm.is_defined()) {
    std::tie(of_scanned, made[kNorm]) = norm_backward(graph, of, dtype, norm);
  }
  made[kSkip] = scan_backward(graph, of, saved[kSkip], gated, tuning);
  {
    const eager::InRow row(graph.tape, eager::kWeightGradientsRow);
    made[kOutput] = graph.make_product(saved[kOutput].elements, saved[kOutput].dtype);
  }
  const Tensor copy = copied_channels(graph, of, dtype);
  const Tensor gradient_copy = copied_channels(graph, of, dtype);
  ConvolutionGradients convolution =
      kernel_convolution_backward(graph, saved[kRows], saved[kConvolution], saved[kBias], false);
  made[kConvolution] = std::move(convolution.weight);
  made[kBias] = std::move(convolution.bias);
  for (const Place place : {kStepBias, kDecay}) {
    made[place] = graph.make(saved[place].elements, kWide);
  }
  return wanted(call, std::move(made));
}

// The output projection's weight in the type of its product: not the copy that autocast keeps.
Tensor cast_weight(Graph& graph, const Tensor& weight) {
  return graph.autocast && weight.dtype != *graph.autocast
             ? graph.make(weight.elements, *graph.autocast)
             : weight.detached();
}

}  // namespace

Tensor mamba_split_conv1d_scan_combined(Graph& graph, Mamba& mixer, const Tensor& rows,
                                        const Tensor& decay, const MambaSizes& sizes) {
  ScanElements of = elements_of(graph, sizes);
  of.dtype = rows.dtype;
  const DType dtype = rows.dtype;
  const Tensor& norm = mixer.norm.weight.data;
  NodeBuilder node(
      graph, {&rows, &mixer.convolution.data, &mixer.convolution_bias.data, &mixer.step_bias.data,
              &decay, &mixer.skip.data, &norm, &mixer.output.weight.data});
  const Tensor convolved = [&] {
    const Tensor copy = copied_channels(graph, of, dtype);
    return graph.make(of.channels, dtype);
  }();
  Scanned scanned = scan_forward(graph, of, dtype, !norm.is_defined(), sizes.packages.tuning);
  Tensor roots;
  if (norm.is_defined()) {
    scanned.output = graph.make(of.inner, dtype);
    roots = graph.make(of.groups, kWide);
  }
  const Tensor projection = cast_weight(graph, mixer.output.weight.data);
  Tensor output = graph.make_product(sizes.tokens * mixer.output.shape.outputs, dtype);
  const SavedArguments arguments(
      node, {rows, mixer.convolution.data, mixer.convolution_bias.data, mixer.step_bias.data, decay,
             mixer.skip.data, norm, projection, scanned.before_gate, roots});
  KernelTuning* const tuning = sizes.packages.tuning;
  return node.finish(std::move(output), [=](BackwardCall& call) {
    return combined_backward(call, of, arguments.of(call), tuning);
  });
}

Tensor selective_scan_fn(Graph& graph, const SelectiveInputs& inputs, const SelectiveSizes& sizes) {
  const MambaSpec& widths = sizes.widths;
  const std::int64_t inner = sizes.tokens * widths.inner;
  const std::int64_t states = sizes.tokens * widths.state;
  const std::int64_t carried = sizes.tokens / sizes.sequence *
                               div_ceil(sizes.sequence, std::int64_t{2048}) * widths.inner *
                               widths.state * 2;
  const DType dtype = inputs.values.dtype;
  NodeBuilder node(graph, {&inputs.values, &inputs.steps, &inputs.decays, &inputs.input_rows,
                           &inputs.output_rows, &inputs.skip, &inputs.gate, &inputs.step_bias});
  const Tensor values = graph.make(inner, dtype);
  const Tensor input_rows = graph.make(states, dtype);
  const Tensor output_rows = graph.make(states, dtype);
  const Tensor gate = graph.make(inner, dtype);
  Tensor output = graph.make(inner, dtype);
  const Tensor before_gate = graph.make(inner, dtype);
  const Tensor carries = graph.make(carried, kWide);
  const SavedArguments arguments(
      node, {values, inputs.steps, inputs.decays, input_rows, output_rows, inputs.skip, gate,
             inputs.step_bias, carries, before_gate});
  return node.finish(std::move(output), [=](BackwardCall& call) {
    const Tensors saved = arguments.of(call);
    Graph& g = call.graph;
    const Tensor output_gradient = g.make(inner, dtype);
    Tensors made(8);
    made[6] = g.make(inner, dtype);
    made[0] = g.make(inner, dtype);
    made[1] = g.make(inner, dtype);
    made[2] = g.make(saved[2].elements, kWide);
    const Tensor wide_input_rows = g.make(states, kWide);
    const Tensor wide_output_rows = g.make(states, kWide);
    made[5] = g.make(saved[5].elements, kWide);
    made[7] = g.make(saved[7].elements, kWide);
    made[3] = g.make(states, dtype);
    made[4] = g.make(states, dtype);
    return wanted(call, std::move(made));
  });
}

}  // namespace shardplan::huggingface
