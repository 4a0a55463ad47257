#include "estimator/frameworks/pieces/huggingface/attention.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/attention.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

std::int64_t pairs(const AttentionSizes& sizes) {
  return sizes.tokens * sizes.sequence;
}

// The composite of operators that scaled_dot_product_attention is where no fused kernel takes its
// arguments: keys and values for every query head, scores in the queries' type with a causal mask
// that is made by each call (ATen native/transformers/attention.cpp
// _scaled_dot_product_attention_math).
Tensor composite_attention(Graph& graph, const Tensor& query, const Tensor& key,
                           const Tensor& value, const AttentionSizes& sizes) {
  const std::int64_t scores = pairs(sizes) * sizes.query_heads;
  const Tensor scaled_query = eager::scale(graph, query);
  Tensor mask;
  {
    const std::int64_t positions = sizes.sequence * sizes.sequence;
    Tensor bytes = graph.make(positions, DType::kBool);
    bytes = graph.make(positions, DType::kBool);
    mask = graph.make(positions, query.dtype);
  }
  const Tensor keys = repeat_heads(graph, key, sizes);
  const Tensor values = repeat_heads(graph, value, sizes);
  const Tensor scaled_keys = eager::scale(graph, keys);
  Tensor weights =
      attention_product(graph, eager::laid_out(graph, scaled_query), scaled_keys, scores);
  weights = softmax(graph, eager::to(graph, weights, DType::kFp32));
  {
    const Tensor is_masked = graph.make(scores, DType::kBool);
    const Tensor rows = graph.make(scores / sizes.sequence, DType::kBool);
  }
  return eager::copied_back(graph, attention_product(graph, weights, values, query.elements));
}

Tensor play_exchange(Graph& graph, std::int64_t elements, DType dtype) {
  const Tensor sent = graph.make(elements, dtype);
  const Tensor received = graph.make(elements, dtype);
  return graph.make(elements, dtype);
}

}  // namespace

Tensor repeat_heads(Graph& graph, const Tensor& input, const AttentionSizes& sizes) {
  if (sizes.query_heads == sizes.key_heads) {
    return input;
  }
  NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements / sizes.key_heads * sizes.query_heads;
  Tensor heads = sizes.key_heads == 1 ? input.viewed(elements) : graph.make(elements, input.dtype);
  return node.finish(std::move(heads),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

Tensor attention_product(Graph& graph, const Tensor& left, const Tensor& right,
                         std::int64_t elements) {
  const Tensor b = graph.autocast ? eager::to(graph, right, *graph.autocast) : right;
  const Tensor a = graph.autocast ? eager::to(graph, left, *graph.autocast) : left;
  NodeBuilder node(graph, {&a, &b});
  if (node.is_needed()) {
    if (a.requires_grad()) {
      node.save(b);
    }
    if (b.requires_grad()) {
      node.save(a);
    }
  }
  const std::int64_t of_a = a.elements;
  const std::int64_t of_b = b.elements;
  const DType dtype = a.dtype;
  return node.finish(graph.make_product(elements, dtype), [=](BackwardCall& call) {
    Tensors saved, gradients(2);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
      }
    }
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
      if (call.wants(i)) {
        gradients[i] = call.graph.make_product(i == 0 ? of_a : of_b, dtype);
      }
    }
    return gradients;
  });
}

Tensor softmax(Graph& graph, const Tensor& scores) {
  NodeBuilder node(graph, {&scores});
  const Tensor output = graph.make(scores.elements, scores.dtype);
  if (node.is_needed()) {
    node.save(output);
  }
  return node.finish(output, [](BackwardCall& call) {
    const Tensor result = call.saved(0);
    const Tensor weighted = call.graph.make(result.elements, result.dtype);
    return Tensors{call.graph.make(result.elements, result.dtype)};
  });
}

Tensor byte_mask(Graph& graph, const AttentionSizes& sizes) {
  const Tensor of_one = graph.make(sizes.sequence * sizes.sequence, DType::kBool);
  return graph.make(pairs(sizes), DType::kBool);
}

Tensor additive_mask(Graph& graph, const AttentionSizes& sizes, DType dtype) {
  const Tensor bytes = byte_mask(graph, sizes);
  return graph.make(pairs(sizes), dtype);
}

Tensor scaled_dot_product(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                          const Tensor& mask, const AttentionSizes& sizes) {
  eager::AttentionShape shape = {
      .tokens = sizes.tokens,
      .query_heads = sizes.query_heads,
      .key_heads = sizes.key_heads,
      .output_elements = sizes.tokens * sizes.query_heads * sizes.value_dim};
  if (sizes.head_dim > kWidestHead) {  // sdp_utils.cpp check_cudnn_tensor_shapes
    const Tensor keys = repeat_heads(graph, key, sizes);
    const Tensor values = repeat_heads(graph, value, sizes);
    return eager::memory_efficient_attention(graph, query, keys, values, mask,
                                             {.sequences = sizes.tokens / sizes.sequence,
                                              .sequence = sizes.sequence,
                                              .heads = sizes.query_heads,
                                              .head_dim = sizes.head_dim});
  }
  const bool is_grouped = sizes.query_heads != sizes.key_heads;
  if (!mask.is_defined() && is_grouped && query.dtype == DType::kFp32 && !graph.autocast) {
    return eager::laid_out(graph, composite_attention(graph, query, key, value, sizes));
  }
  if (!mask.is_defined()) {
    return eager::fused_attention(graph, query, key, value, shape);
  }
  shape.key_heads = sizes.query_heads;
  shape.mask_elements = mask.elements;
  const Tensor keys = repeat_heads(graph, key, sizes);
  const Tensor values = repeat_heads(graph, value, sizes);
  return eager::fused_attention(graph, query, keys, values, shape);
}

// What a call makes lives until it ends: the mask and a copy of the probabilities in the queries'
// type, and queries, keys and values in fp32. The mask is added in place. Of several sequences
// products take copies, of keys and values one for every head of queries.
Tensor broadcast_attention(Graph& graph, const Tensor& query, const Tensor& key,
                           const Tensor& value, const Tensor& mask, const AttentionSizes& sizes) {
  const DType half = graph.autocast.value_or(query.dtype);
  const auto autocast = std::exchange(graph.autocast, std::nullopt);
  const std::int64_t scores = pairs(sizes) * sizes.query_heads;
  const auto wide = [&](const Tensor& tensor) {
    return eager::to(graph, eager::to(graph, tensor, half), DType::kFp32);
  };
  const bool copies = sizes.tokens > sizes.sequence;
  const auto for_all_heads = [&](const Tensor& tensor) {
    const Tensor heads = repeat_heads(graph, tensor, sizes);
    return copies ? eager::laid_out(graph, heads) : heads;
  };
  const Tensor floats = graph.make(mask.elements, half);
  const Tensor wide_query = wide(query);
  const Tensor wide_key = wide(key);
  const Tensor wide_value = wide(value);
  const Tensor scaled_query = eager::scale(graph, wide_query);
  const Tensor scaled_key = eager::scale(graph, wide_key);
  Tensor weights =
      attention_product(graph, copies ? eager::laid_out(graph, scaled_query) : scaled_query,
                        for_all_heads(scaled_key), scores);
  weights = softmax(graph, weights);
  {
    const Tensor is_masked = graph.make(scores, DType::kBool);
    const Tensor rows = graph.make(scores / sizes.sequence, DType::kBool);
  }
  const Tensor returned = graph.make(scores, half);
  const Tensor output =
      attention_product(graph, weights, for_all_heads(wide_value), query.elements);
  graph.autocast = autocast;
  return eager::laid_out(graph, eager::to(graph, output, half));
}

Tensor eager_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                       const Tensor& mask, const AttentionSizes& sizes) {
  const Tensor keys = repeat_heads(graph, key, sizes);
  const Tensor values = repeat_heads(graph, value, sizes);
  const std::int64_t scores = pairs(sizes) * sizes.query_heads;
  Tensor weights = attention_product(graph, query, keys, scores);
  weights = eager::scale(graph, weights);
  if (sizes.caps_scores) {
    weights = eager::soft_capped(graph, std::move(weights));
  }
  weights = eager::add(graph, weights, mask);
  const DType dtype = query.dtype;
  weights = softmax(graph, eager::to(graph, weights, DType::kFp32));
  weights = eager::to(graph, weights, dtype);
  const Tensor output =
      attention_product(graph, weights, values, sizes.tokens * sizes.query_heads * sizes.value_dim);
  return eager::laid_out(graph, output);  // tokens before heads
}

Tensor fp32_attention(Graph& graph, const Tensor& query, const Tensor& key, const Tensor& value,
                      const Tensor& mask, const AttentionSizes& sizes) {
  const Tensor wide_query = eager::to(graph, query, DType::kFp32);
  const Tensor wide_key = eager::to(graph, key, DType::kFp32);
  const std::int64_t scores = pairs(sizes) * sizes.query_heads;
  Tensor weights = attention_product(graph, wide_query, wide_key, scores);
  weights = eager::scale(graph, weights);
  weights = eager::add(graph, weights, mask);
  weights = softmax(graph, eager::to(graph, weights, DType::kFp32));
  weights = eager::to(graph, weights, value.dtype);
  return eager::laid_out(graph, attention_product(graph, weights, value, query.elements));
}

Tensor exchanged(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements;
  const DType dtype = input.dtype;
  return node.finish(play_exchange(graph, elements, dtype), [=](BackwardCall& call) {
    return Tensors{play_exchange(call.graph, elements, dtype)};
  });
}

}  // namespace shardplan::huggingface
