#include "estimator/frameworks/pieces/eager/attention.h"

#include <algorithm>

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/plan/number.h"

namespace shardplan::eager {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kAttentionCounters = 256;  // bytes

// Of the memory-efficient kernel for heads wider than 128 (mem_eff_attention/kernels/cutlassB.h,
// the first that fits): rows of queries and of keys of a tile.
constexpr std::int64_t kQueryRows = 128;
constexpr std::int64_t kKeyRows = 64;
constexpr std::int64_t kSumRows = 32;      // kernel_forward.h kAlignLSE
constexpr std::int64_t kMaskColumns = 8;   // attention.cpp preprocess_mask
constexpr std::int64_t kMostSplits = 200;  // of all heads, where tiles of keys are accumulated

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return div_ceil(value, multiple) * multiple;
}

// convert_boolean_attn_mask, and a copy with columns beside the last where these are needed.
Tensor added_mask(Graph& graph, const Tensor& mask, std::int64_t sequence, DType dtype) {
  if (!mask.is_defined()) {
    return {};
  }
  const Tensor numbers = to(graph, mask, dtype);
  const std::int64_t columns = rounded_up(sequence, kMaskColumns);
  return columns == sequence ? numbers : graph.make(mask.elements / sequence * columns, dtype);
}

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

// Tiles of keys are split over blocks; each accumulates its gradients of keys and values in fp32,
// where these are rounded to half in the end. A tile of the gradient of queries has a lock and a
// counter, 16 bytes.
std::int64_t memory_efficient_workspace(const WideAttentionShape& shape, bool is_half) {
  constexpr std::int64_t kLockFloats = 4;
  const std::int64_t all_heads = shape.sequences * shape.heads;
  const std::int64_t splits = std::max<std::int64_t>(
      1, std::min(div_ceil(shape.sequence, kKeyRows), kMostSplits / all_heads));
  const std::int64_t of_keys =
      is_half ? 2 * splits * kKeyRows * rounded_up(shape.head_dim, kQueryRows) : 0;
  const std::int64_t of_queries = div_ceil(shape.sequence, kQueryRows) *
                                  div_ceil(shape.head_dim, kKeyRows) *
                                  (kQueryRows * kKeyRows + kLockFloats);
  return kFp32 * all_heads * rounded_up(of_keys + of_queries, 4);
}

// Tokens stand in front of heads in what it makes. fp32 needs no second output to accumulate in;
// its backward multiplies outputs with their gradients operator by operator.
Tensor memory_efficient_attention(Graph& graph, const Tensor& query, const Tensor& key,
                                  const Tensor& value, const Tensor& mask,
                                  const WideAttentionShape& shape) {
  const Tensor v = in_autocast(graph, value);
  const Tensor k = in_autocast(graph, key);
  const Tensor q = in_autocast(graph, query);
  const bool is_half = q.dtype != DType::kFp32;
  NodeBuilder node(graph, {&q, &k, &v});
  const Tensor bias = added_mask(graph, mask, shape.sequence, q.dtype);
  const Tensor output = graph.make(q.elements, q.dtype);
  const std::int64_t all_heads = shape.sequences * shape.heads;
  const Tensor sums = graph.make(all_heads * rounded_up(shape.sequence, kSumRows), DType::kFp32);
  { const Tensor accumulated = graph.make(is_half ? output.elements : 0, DType::kFp32); }
  if (node.is_needed()) {
    for (const auto& [tensor, is_strided] :
         {std::pair{&k, false}, {&sums, false}, {&output, true}, {&q, true}, {&v, false}}) {
      Tensor saved = *tensor;
      saved.is_strided = is_strided;
      node.save(saved);
    }
    if (bias.is_defined()) {
      node.save(bias);
    }
  }
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
    if (!is_half) {
      const Tensor products = g.make(saved_output.elements, DType::kFp32);
      const Tensor by_token = g.make(all_heads * shape.sequence, DType::kFp32);
    }
    const Tensor delta = g.make(all_heads * shape.sequence, DType::kFp32);
    const Tensor workspace = g.make(memory_efficient_workspace(shape, is_half), DType::kBool);
    return gradients;
  });
}

}  // namespace shardplan::eager
