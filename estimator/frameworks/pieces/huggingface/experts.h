// Experts of a layer by grouped products: rows of tokens sorted by expert, one product for all.
// Source: transformers 5.17 integrations/moe.py grouped_mm_experts_forward,
// models/qwen3_moe/modeling_qwen3_moe.py Qwen3MoeTopKRouter (mixtral's is alike).
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

struct Experts {
  eager::Parameter gate_up, down, router;  // [E, 2f, h], [E, h, f], [E, h]
};

struct ExpertSizes {
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;  // of one expert
  std::int64_t experts = 0;
  std::int64_t chosen = 0;  // of a token
};

eager::Tensor experts_forward(eager::Graph& graph, const Experts& experts,
                              const eager::Tensor& hidden, const ExpertSizes& sizes);

}  // namespace shardplan::huggingface
