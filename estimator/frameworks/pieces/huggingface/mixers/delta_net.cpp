#include "estimator/frameworks/pieces/huggingface/mixers/delta_net.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/huggingface/mixers/convolution.h"
#include "estimator/frameworks/pieces/huggingface/mixers/delta_kernels.h"
#include "estimator/frameworks/pieces/huggingface/mixers/delta_rule.h"

namespace shardplan::huggingface {
namespace {

using eager::Graph;
using eager::Tensor;
using eager::Tensors;

struct Projected {
  Tensor mixed;  // queries, keys and values
  Tensor gate, rate, decay;
  Tensors parts;  // of which `mixed` is made: until it is convolved
  Tensors rows;   // that names of the module's forward hold until it returns
};

// Qwen3NextGatedDeltaNet.fix_query_key_value_ordering: parts of rows by key head, which are copied
// to lie one behind the other where there are several.
Projected joint_projections(Graph& graph, DeltaNet& net, const Tensor& input,
                            const DeltaSizes& sizes) {
  const DeltaSpec& widths = sizes.widths;
  const std::int64_t key = sizes.tokens * widths.key_width();
  const std::int64_t value = sizes.tokens * widths.value_width();
  const std::int64_t scalars = sizes.tokens * widths.value_heads;
  Projected projected;
  projected.rows.push_back(project(graph, net.joint, input));
  projected.rows.push_back(project(graph, net.joint_scalars, input));
  const Tensors parts = eager::split_into(graph, projected.rows[0], {key, key, value, value});
  const Tensors scalar_parts = eager::split_into(graph, projected.rows[1], {scalars, scalars});
  const auto copied = [&](const Tensor& part) {
    return widths.key_heads > 1 ? eager::laid_out(graph, part) : part;
  };
  const Tensor values = copied(parts[2]);
  projected.gate = copied(parts[3]);
  projected.rate = copied(scalar_parts[0]);
  projected.decay = copied(scalar_parts[1]);
  const Tensor queries = copied(parts[0]);
  const Tensor keys = copied(parts[1]);
  projected.parts = {queries, keys, values};
  projected.mixed = eager::cat(graph, projected.parts);
  return projected;
}

// The gradient of what PyTorch convolves lies channels before tokens; that of the kernel does not.
Projected projections(Graph& graph, DeltaNet& net, const Tensor& input, const Packages& packages) {
  Projected projected;
  const Tensor rows = project(graph, net.queries_keys_values, input);
  projected.mixed = packages.convolutions ? rows : eager::copied_back(graph, rows);
  projected.gate = project(graph, net.gates, input);
  projected.rate = project(graph, net.rates, input);
  projected.decay = project(graph, net.decays, input);
  return projected;
}

// Of value heads, as queries and keys of one key head are repeated (repeat_interleave).
Tensor repeated(Graph& graph, const Tensor& input, const DeltaSpec& widths) {
  if (widths.value_heads == widths.key_heads) {
    return input;
  }
  eager::NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements / widths.key_heads * widths.value_heads;
  return node.finish(graph.make(elements, input.dtype),
                     [](eager::BackwardCall& call) { return std::move(call.gradients); });
}

// -exp(decay_log) * softplus(decay + step_bias), in fp32.
Tensor decay_of(Graph& graph, const DeltaNet& net, const Tensor& decay) {
  Tensor rate = eager::to(graph, net.decay_log.data, DType::kFp32);
  rate = eager::scale(graph, eager::exponential(graph, rate));
  Tensor step = eager::to(graph, decay, DType::kFp32);
  step = eager::add(graph, step, net.step_bias.data);
  return eager::multiply_rows(graph, rate, eager::softplus(graph, step));
}

// Qwen3NextRMSNormGated: the normed value in the input's type times silu of the gate in fp32.
Tensor gated_norm(Graph& graph, const Norm& norm, const Tensor& input, const Tensor& gate) {
  const Tensor x = llama_norm(graph, norm, input);
  const Tensor activation = eager::silu(graph, eager::to(graph, gate, DType::kFp32));
  return eager::to(graph, eager::multiply(graph, x, activation), input.dtype);
}

}  // namespace

Tensor delta_net(Graph& graph, DeltaNet& net, const Tensor& input, const DeltaSizes& sizes) {
  const DeltaSpec& widths = sizes.widths;
  const std::int64_t key = sizes.tokens * widths.key_width();
  const std::int64_t value = sizes.tokens * widths.value_width();
  Projected projected = net.joint.shape.inputs > 0 ? joint_projections(graph, net, input, sizes)
                                                   : projections(graph, net, input, sizes.packages);
  projected.mixed = activated_convolution(graph, projected.mixed, net.convolution.data, {},
                                          {.sequence = sizes.sequence,
                                           .taps = widths.convolution,
                                           .by_kernel = sizes.packages.convolutions});
  projected.parts.clear();
  const Tensors parts = eager::split_into(graph, projected.mixed, {key, key, value});
  const Tensor rate = eager::sigmoid(graph, projected.rate);
  const DeltaInputs inputs = {
      .query = repeated(graph, parts[0], widths),
      .key = repeated(graph, parts[1], widths),
      .value = sizes.packages.scans ? parts[2] : eager::copied_back(graph, parts[2]),
      .decay = decay_of(graph, net, projected.decay),
      .rate = rate};
  const Tensor output = sizes.packages.scans ? chunk_gated_delta_rule(graph, inputs, sizes)
                                             : delta_rule(graph, inputs, sizes);
  return net.has_norm_kernel
             ? eager::gated_norm(graph, net.norm.weight.data, output, projected.gate)
             : gated_norm(graph, net.norm, output, projected.gate);
}

}  // namespace shardplan::huggingface
