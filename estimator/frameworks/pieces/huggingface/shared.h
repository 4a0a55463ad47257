// What layers share of a forward pass: cosines and sines of positions, and masks of attention.
// Sources: transformers 5.17 models/llama/modeling_llama.py LlamaRotaryEmbedding,
// models/gemma3/modeling_gemma3.py, masking_utils.py.
#pragma once

#include <array>

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/huggingface/attention.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/plan/job.h"

namespace shardplan::huggingface {

struct Shared {
  Rotary rotary;
  eager::Tensor mask;
};

// Of layers without a window, and of those with one.
struct SharedByLayer {
  std::array<Shared, 2> by_window;

  const Shared& of(const LayerSpec& layer) const {
    return by_window[layer.attention_window > 0 ? 1 : 0];
  }
};

// The types of embeddings, which cosines and sines are cast to, and of norms.
struct EndTypes {
  DType table = DType::kBf16;
  DType norms = DType::kBf16;
};

// Attention operator by operator, of masks that are added: where it is asked for, and of layers
// with sinks.
bool is_eager_attention(const Job& job);

// One head of keys and values that scaled_dot_product_attention gets for all heads of queries.
bool is_broadcast_attention(const Job& job);
// Which scores attention keeps, as an answer says it.
const char* attention_assumption(const Job& job);

SharedByLayer shared_by_layers(eager::Graph& graph, const Job& job, const AttentionSizes& sizes,
                               const EndTypes& types);

}  // namespace shardplan::huggingface
