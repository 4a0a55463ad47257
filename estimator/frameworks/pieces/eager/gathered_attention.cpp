#include "estimator/frameworks/pieces/eager/gathered_attention.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::eager {
namespace {

// Elements of one head of keys: of this rank's tokens, of all ranks', of its queries and their
// sums.
struct OfHead {
  std::int64_t key = 0;
  std::int64_t all_keys = 0;
  std::int64_t query = 0;
  std::int64_t sums = 0;
};

// Two tensors of keys and values of all ranks, of which one fills while the other is read, and what
// this rank sends of the next head.
class GatheredKeys {
 public:
  GatheredKeys(Graph& graph, const OfHead& of, std::int64_t heads, DType dtype)
      : graph_(graph), of_(of), heads_(heads), dtype_(dtype) {
    const InRow row(graph.tape, kRingExchangeRow);
    read_ = graph.make(2 * of.all_keys, dtype);
    filling_ = graph.make(2 * of.all_keys, dtype);
    first_key_ = graph.make(of.key, dtype);
    first_value_ = graph.make(of.key, dtype);
  }

  // While a head is attended to the next one comes.
  void attend(std::int64_t head) {
    if (head + 1 < heads_) {
      const InRow row(graph_.tape, kRingExchangeRow);
      sent_key_ = graph_.make(of_.key, dtype_);
      sent_value_ = graph_.make(of_.key, dtype_);
    }
  }

 private:
  Graph& graph_;
  const OfHead of_;
  const std::int64_t heads_;
  const DType dtype_;
  Tensor read_, filling_, first_key_, first_value_, sent_key_, sent_value_;
};

struct Attended {
  Tensor output;
  Tensor sums;
};

// Outputs of all heads are put together beside the single ones.
Attended play_forward(Graph& graph, const OfHead& of, std::int64_t heads, DType dtype) {
  GatheredKeys keys(graph, of, heads, dtype);
  Tensors outputs, sums;
  for (std::int64_t head = 0; head < heads; ++head) {
    keys.attend(head);
    outputs.push_back(graph.make(of.query, dtype));
    sums.push_back(graph.make(of.sums, DType::kFp32));
  }
  Tensor output = graph.make(heads * of.query, dtype);
  return {.output = std::move(output), .sums = graph.make(heads * of.sums, DType::kFp32)};
}

// The kernel's gradients of keys and values are those of all ranks' tokens, for every head of
// queries where several share one of keys; they are summed over ranks by way of a tensor of one
// head, where there are several.
Tensors play_backward(Graph& graph, const OfHead& of, std::int64_t heads, DType dtype,
                      std::int64_t heads_of_key) {
  const auto exchanged = [&](std::int64_t elements) {
    const InRow row(graph.tape, kRingExchangeRow);
    return graph.make(elements, dtype);
  };
  GatheredKeys keys(graph, of, heads, dtype);
  const Tensor of_all_keys = exchanged(2 * of.all_keys);
  const Tensor of_one_head = exchanged(heads > 1 ? 2 * of.key : 0);
  Tensors gradients = {graph.make(heads * of.query, dtype), graph.make(heads * of.key, dtype),
                       graph.make(heads * of.key, dtype)};
  for (std::int64_t head = 0; head < heads; ++head) {
    keys.attend(head);
    const Tensor products = graph.make(of.sums, DType::kFp32);
    const Tensor of_queries = graph.make(of.query, DType::kFp32);
    const std::int64_t expanded = heads_of_key > 1 ? heads_of_key * of.all_keys : 0;
    const Tensor of_keys = graph.make(expanded, dtype);
    const Tensor of_values = graph.make(expanded, dtype);
  }
  return gradients;
}

}  // namespace

Tensor gathered_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                          const GatheredAttentionShape& shape) {
  const Tensor v = in_autocast(graph, value);
  const Tensor k = in_autocast(graph, key);
  const Tensor q = in_autocast(graph, query);
  NodeBuilder node(graph, {&q, &k, &v});
  const std::int64_t heads = shape.key_heads;
  const std::int64_t heads_of_key = shape.query_heads / heads;
  const OfHead of = {.key = k.elements / heads,
                     .all_keys = shape.ranks * (k.elements / heads),
                     .query = q.elements / heads,
                     .sums = heads_of_key * shape.tokens};
  const DType dtype = q.dtype;
  const auto [output, sums] = play_forward(graph, of, heads, dtype);
  if (node.is_needed()) {
    for (const Tensor* tensor : {&q, &k, &v, &output, &sums}) { node.save(*tensor); }
  }
  return node.finish(output, [=](BackwardCall& call) {
    Tensors saved;
    for (std::size_t i = 0; i < 5; ++i) { saved.push_back(call.saved(i)); }
    return play_backward(call.graph, of, heads, dtype, heads_of_key);
  });
}

}  // namespace shardplan::eager
