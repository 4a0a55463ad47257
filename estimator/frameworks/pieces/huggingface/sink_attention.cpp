#include "estimator/frameworks/pieces/huggingface/sink_attention.h"

#include <utility>

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// The sinks, expanded to all rows, behind the scores of every row. Their gradients are views.
Tensor with_sinks(Graph& graph, const Tensor& scores, const Tensor& sinks, std::int64_t rows) {
  NodeBuilder node(graph, {&scores, &sinks});
  const std::int64_t elements = scores.elements;
  return node.finish(graph.make(elements + rows, scores.dtype), [=](BackwardCall& call) {
    const Tensor gradient = std::move(call.gradients[0]);
    return Tensors{gradient.viewed(elements), gradient.viewed(rows)};
  });
}

// The largest score of every row: its place is saved, and its gradient lies in zeros of all.
Tensor largest(Graph& graph, const Tensor& scores, std::int64_t rows) {
  NodeBuilder node(graph, {&scores});
  Tensor values = graph.make(rows, scores.dtype);
  const Tensor places = graph.make(rows, DType::kInt64);
  if (node.is_needed()) {
    node.save(places);
  }
  const std::int64_t elements = scores.elements;
  const DType dtype = scores.dtype;
  return node.finish(std::move(values), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    return Tensors{call.graph.make(elements, dtype)};
  });
}

}  // namespace

Tensor sink_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                      const Tensor& mask, const Tensor& sinks, const AttentionSizes& sizes) {
  const Tensor keys = repeat_heads(graph, key, sizes);
  const Tensor values = repeat_heads(graph, value, sizes);
  const std::int64_t rows = sizes.tokens * sizes.query_heads;
  const std::int64_t scores = rows * sizes.sequence;
  Tensor weights = eager::scale(graph, attention_product(graph, query, keys, scores));
  weights = eager::add(graph, weights, mask);
  Tensor all = with_sinks(graph, weights, sinks, rows);
  all = eager::subtract(graph, all, largest(graph, all, rows));
  const Tensor probabilities = softmax(graph, all);
  weights = eager::slice(graph, probabilities, scores);
  const Tensor output = attention_product(graph, weights, values, rows * sizes.value_dim);
  return eager::laid_out(graph, output);  // tokens before heads
}

}  // namespace shardplan::huggingface
