#include "estimator/frameworks/pieces/eager/attention.h"

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::eager {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kAttentionCounters = 256;  // bytes

}  // namespace

// cuDNN's backward pass has one workspace: dQ in fp32, softmax's sums, gradients of keys and values
// for every query head, and counters. Seen in the allocator's history of PyTorch 2.11 on H200 (8
// query heads, 2 key heads of 128, 1,024 tokens).
Tensor fused_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                       const AttentionShape& shape) {
  const Tensor v = in_autocast(graph, value);
  const Tensor k = in_autocast(graph, key);
  const Tensor q = in_autocast(graph, query);
  NodeBuilder node(graph, {&q, &k, &v});
  const std::int64_t sums = shape.query_heads * shape.tokens;
  const Tensor mask = graph.make(shape.mask_elements, q.dtype);
  const Tensor output = graph.make(shape.output_elements, q.dtype);
  const Tensor log_sum_exp = graph.make(sums, DType::kFp32);
  if (node.is_needed()) {
    // Heads stand in front of tokens, whose rows lie together.
    for (const auto& [tensor, is_strided] :
         {std::pair{&k, true}, {&log_sum_exp, false}, {&output, true}, {&q, true}, {&v, true}}) {
      Tensor saved = *tensor;
      saved.is_strided = is_strided;
      node.save(saved);
    }
    if (mask.is_defined()) {
      node.save(mask);
    }
  }
  const bool expands = shape.query_heads != shape.key_heads;
  return node.finish(output, [=](BackwardCall& call) {
    const Tensor saved_key = call.saved(0);
    const Tensor saved_sums = call.saved(1);
    const Tensor saved_output = call.saved(2);
    const Tensor saved_query = call.saved(3);
    const Tensor saved_value = call.saved(4);
    Graph& g = call.graph;
    Tensors gradients = {g.make(saved_query.elements, saved_query.dtype),
                         g.make(saved_key.elements, saved_key.dtype),
                         g.make(saved_value.elements, saved_value.dtype)};
    const std::int64_t expanded = expands ? 2 * saved_query.bytes() : 0;
    const Tensor workspace =
        g.make(kFp32 * (saved_query.elements + sums) + expanded + kAttentionCounters, DType::kBool);
    return gradients;
  });
}

}  // namespace shardplan::eager
