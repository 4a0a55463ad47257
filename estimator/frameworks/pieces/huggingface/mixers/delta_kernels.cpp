// Names of tensors are those of the sources: w and u, what a chunk's triangle makes of keys and
// values; h, the state in front of every chunk; v_new, values less what the state knows of them.
#include "estimator/frameworks/pieces/huggingface/mixers/delta_kernels.h"

#include <utility>

#include "estimator/frameworks/pieces/delta_rule_work.h"
#include "estimator/plan/units.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

constexpr DType kWide = DType::kFp32;

// Elements of all tokens.
struct RuleElements {
  std::int64_t keys = 0;  // of all value heads
  std::int64_t values = 0;
  std::int64_t heads = 0;
  std::int64_t states = 0;  // of all chunks
  std::int64_t pairs = 0;   // of tokens within chunks
};

RuleElements elements_of(const DeltaSizes& sizes) {
  const DeltaSpec& widths = sizes.widths;
  const std::int64_t chunks =
      sizes.tokens / sizes.sequence * div_ceil(sizes.sequence, kRuleChunkTokens);
  const std::int64_t heads = sizes.tokens * widths.value_heads;
  return {.keys = heads * widths.key_head_dim,
          .values = heads * widths.value_head_dim,
          .heads = heads,
          .states = chunks * widths.value_heads * widths.key_head_dim * widths.value_head_dim,
          .pairs = heads * kRuleChunkTokens};
}

// Of all that a rule saves, as its backward holds it until it returns.
Tensors saved_by(BackwardCall& call, std::size_t count) {
  Tensors saved;
  for (std::size_t i = 0; i < count; ++i) { saved.push_back(call.saved(i)); }
  return saved;
}

void save_all(NodeBuilder& node, const Tensors& tensors) {
  if (node.is_needed()) {
    for (const Tensor& tensor : tensors) { node.save(tensor); }
  }
}

Tensors wanted(const BackwardCall& call, Tensors gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!call.wants(i)) {
      gradients[i] = {};
    }
  }
  return gradients;
}

// Queries and keys that are parts of the convolution's output are copied for the kernels; those
// that were repeated lie as they should. Values always are such parts.
Tensors copied_keys(Graph& graph, const RuleElements& of, DType dtype, bool are_parts) {
  return are_parts ? Tensors{graph.make(of.keys, dtype), graph.make(of.keys, dtype)} : Tensors{};
}

struct Normed {
  Tensor rows, lengths;  // of length 1, and reciprocals of what they had
};

Normed l2norm(Graph& graph, const RuleElements& of, DType dtype) {
  Normed normed;
  normed.rows = graph.make(of.keys, dtype);
  normed.lengths = graph.make(of.heads, kWide);
  return normed;
}

// In place of each, the gradient in front of its norm.
void l2norm_backward(Graph& graph, const RuleElements& of, DType dtype, Tensor& query,
                     Tensor& key) {
  for (Tensor* gradient : {&query, &key}) { *gradient = graph.make(of.keys, dtype); }
}

// chunk_gated_delta_rule_bwd, whose tensors live until it returns. An element of blocks of keys
// each has a part of the decay's gradient.
Tensors gated_backward(Graph& graph, const RuleElements& of, DType dtype, std::int64_t blocks) {
  const Tensor w = graph.make(of.keys, dtype);
  const Tensor u = graph.make(of.values, dtype);
  const Tensor h = graph.make(of.states, dtype);
  const Tensor v_new = graph.make(of.values, dtype);
  Tensor of_values = graph.make(of.values, dtype);
  const Tensor of_states = graph.make(of.states, dtype);
  of_values = graph.make(of.values, dtype);
  Tensor of_query = graph.make(of.keys, dtype);
  Tensor of_key = graph.make(of.keys, dtype);
  Tensor of_decay = graph.make(blocks * of.heads, kWide);
  const Tensor of_w = graph.make(of.keys, dtype);
  of_decay = graph.make(of.heads, kWide);
  const Tensor more_of_key = graph.make(of.keys, dtype);
  Tensor values_gradient = graph.make(of.values, dtype);
  const Tensor more_of_decay = graph.make(of.heads, kWide);
  Tensor of_rate = graph.make(of.heads, dtype);
  of_values = std::move(values_gradient);
  of_decay = graph.make(of.heads, kWide);
  return {std::move(of_query), std::move(of_key), std::move(of_values), std::move(of_decay),
          std::move(of_rate)};
}

// chunk_kda_bwd_intra makes all four gradients again, and parts of that of rates by block of keys.
void within_chunks_backward(Graph& graph, const RuleElements& of, std::int64_t blocks,
                            Tensors& gradients) {
  Tensor of_query = graph.make(of.keys, kWide);
  Tensor of_key = graph.make(of.keys, kWide);
  const Tensor parts = graph.make(blocks * of.heads, kWide);
  Tensor of_decay = graph.make(of.keys, kWide);
  Tensor of_rate = graph.make(of.heads, kWide);
  gradients[0] = std::move(of_query);
  gradients[1] = std::move(of_key);
  gradients[3] = std::move(of_decay);
  gradients[4] = std::move(of_rate);
}

// chunk_kda_bwd: of query, key, value, decay and rate.
Tensors kimi_backward(Graph& graph, const RuleElements& of, DType dtype, std::int64_t blocks) {
  const Tensor w = graph.make(of.keys, dtype);
  const Tensor u = graph.make(of.values, dtype);
  const Tensor decayed_queries = graph.make(of.keys, dtype);
  const Tensor decayed_keys = graph.make(of.keys, dtype);
  const Tensor h = graph.make(of.states, dtype);
  const Tensor v_new = graph.make(of.values, dtype);
  const Tensor of_scores = graph.make(of.pairs, kWide);
  Tensor of_values = graph.make(of.values, dtype);
  const Tensor of_states = graph.make(of.states, dtype);
  of_values = graph.make(of.values, dtype);
  Tensors gradients(5);
  gradients[0] = graph.make(of.keys, kWide);
  gradients[1] = graph.make(of.keys, kWide);
  gradients[2] = graph.make(of.values, dtype);
  gradients[3] = graph.make(of.keys, kWide);
  gradients[4] = graph.make(of.heads, kWide);
  const Tensor of_triangles = graph.make(of.pairs, kWide);
  of_values = {};
  within_chunks_backward(graph, of, blocks, gradients);
  gradients[3] = graph.make(of.keys, kWide);
  return gradients;
}

}  // namespace

Tensor chunk_gated_delta_rule(Graph& graph, const DeltaInputs& inputs, const DeltaSizes& sizes) {
  const RuleElements of = elements_of(sizes);
  const DType dtype = inputs.query.dtype;
  const bool are_parts = sizes.widths.key_heads == sizes.widths.value_heads;
  NodeBuilder node(graph, {&inputs.query, &inputs.key, &inputs.value, &inputs.decay, &inputs.rate});
  Tensor output;
  {
    const Tensors copies = copied_keys(graph, of, dtype, are_parts);
    const Tensor value = graph.make(of.values, dtype);
    const Normed query = l2norm(graph, of, dtype);
    const Normed key = l2norm(graph, of, dtype);
    const Tensor decay = graph.make(of.heads, kWide);
    const Tensor triangles = graph.make(of.pairs, dtype);
    const Tensor w = graph.make(of.keys, dtype);
    const Tensor u = graph.make(of.values, dtype);
    const Tensor h = graph.make(of.states, dtype);
    const Tensor v_new = graph.make(of.values, dtype);
    output = graph.make(of.values, dtype);
    save_all(node, {query.rows, query.lengths, key.rows, key.lengths, value, decay, inputs.rate,
                    triangles});
  }
  const std::int64_t blocks = div_ceil(sizes.widths.key_head_dim, std::int64_t{128});
  return node.finish(std::move(output), [=](BackwardCall& call) {
    const Tensors saved = saved_by(call, 8);
    Tensors gradients = gated_backward(call.graph, of, dtype, blocks);
    l2norm_backward(call.graph, of, dtype, gradients[0], gradients[1]);
    return wanted(call, std::move(gradients));
  });
}

Tensor chunk_kda(Graph& graph, const DeltaInputs& inputs, const DeltaSizes& sizes) {
  const RuleElements of = elements_of(sizes);
  const DType dtype = inputs.query.dtype;
  NodeBuilder node(graph, {&inputs.query, &inputs.key, &inputs.value, &inputs.decay, &inputs.rate});
  Tensor output;
  {
    const Tensors copies = copied_keys(graph, of, dtype, true);
    const Tensor value = graph.make(of.values, dtype);
    const Normed query = l2norm(graph, of, dtype);
    const Normed key = l2norm(graph, of, dtype);
    const Tensor decay = graph.make(of.keys, kWide);
    const Tensor scores = graph.make(of.pairs, dtype);
    const Tensor triangles = graph.make(of.pairs, dtype);
    Tensor diagonals = graph.make(of.heads * 16, kWide);
    const Tensor w = graph.make(of.keys, dtype);
    const Tensor u = graph.make(of.values, dtype);
    const Tensor decayed_keys = graph.make(of.keys, dtype);
    diagonals = {};
    const Tensor h = graph.make(of.states, dtype);
    const Tensor v_new = graph.make(of.values, dtype);
    output = graph.make(of.values, dtype);
    save_all(node, {query.rows, query.lengths, key.rows, key.lengths, value, decay, inputs.decay,
                    inputs.rate, scores, triangles});
  }
  const std::int64_t blocks = div_ceil(sizes.widths.key_head_dim, std::int64_t{32});
  return node.finish(std::move(output), [=](BackwardCall& call) {
    const Tensors saved = saved_by(call, 10);
    Tensors gradients = kimi_backward(call.graph, of, dtype, blocks);
    l2norm_backward(call.graph, of, dtype, gradients[0], gradients[1]);
    gradients[4] = call.graph.make(of.heads, dtype);
    return wanted(call, std::move(gradients));
  });
}

}  // namespace shardplan::huggingface
