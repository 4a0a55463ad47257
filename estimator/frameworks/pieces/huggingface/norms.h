// Norms of Hugging Face's models: RMSNorm in fp32, operator by operator.
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

struct Norm {
  eager::Parameter weight;
  std::int64_t width = 0;
};

// LlamaRMSNorm and its kin: weight * normed, in the type of the input.
eager::Tensor llama_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);
// GemmaRMSNorm and its kin: normed * (1 + weight), in fp32 (transformers 5.17
// models/gemma2/modeling_gemma2.py).
eager::Tensor gemma_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);

}  // namespace shardplan::huggingface
