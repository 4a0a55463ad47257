#include "estimator/frameworks/pieces/huggingface/sink_attention.h"

#include <utility>

#include "estimator/plan/units.h"

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

// The backward kernel accumulates gradients of queries in fp32, and of keys and values where
// several heads of queries share them; rows of the widest tile stand behind them. What it returns
// beside the gradients lives as long as its call.
Tensor flash_attention_with_sinks(Graph& graph, const Tensor& query, const Tensor& key,
                                  const Tensor& value, const AttentionSizes& sizes) {
  constexpr std::int64_t kTile = 128;
  const Tensor v = eager::in_autocast(graph, value);
  const Tensor k = eager::in_autocast(graph, key);
  const Tensor q = eager::in_autocast(graph, query);
  NodeBuilder node(graph, {&q, &k, &v});
  const DType dtype = q.dtype;
  const std::int64_t rows = sizes.tokens * sizes.query_heads;
  const Tensor output = graph.make(rows * sizes.value_dim, dtype);
  const Tensor sums = graph.make(rows, DType::kFp32);
  if (node.is_needed()) {
    for (const Tensor* tensor : {&q, &k, &v, &output, &sums}) { node.save(*tensor); }
  }
  const std::int64_t padded = div_ceil(sizes.tokens, kTile) * kTile + kTile;
  const bool shares_keys = sizes.query_heads != sizes.key_heads;
  const std::int64_t of_keys = shares_keys ? padded * (k.elements / sizes.tokens) : 0;
  const std::int64_t of_queries = padded * (q.elements / sizes.tokens);
  const std::int64_t padded_rows = padded * sizes.query_heads;
  return node.finish(output, [=](BackwardCall& call) {
    Tensors saved, gradients, beside;
    for (std::size_t i = 0; i < 5; ++i) { saved.push_back(call.saved(i)); }
    for (std::size_t i = 0; i < 3; ++i) {
      gradients.push_back(call.graph.make(saved[i].elements, dtype));
    }
    for (const std::int64_t elements : {padded_rows, padded_rows, of_queries, of_keys, of_keys}) {
      beside.push_back(call.graph.make(elements, DType::kFp32));
    }
    return gradients;
  });
}

}  // namespace shardplan::huggingface
