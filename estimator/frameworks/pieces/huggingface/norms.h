// Norms of Hugging Face's models: RMSNorm in fp32, operator by operator.
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

struct Norm {
  eager::Parameter weight;
  eager::Parameter bias;  // undefined: none
  std::int64_t width = 0;
};

// LlamaRMSNorm and its kin: weight * normed, in the type of the input.
eager::Tensor llama_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);
// GemmaRMSNorm and its kin: normed * (1 + weight), in fp32 (transformers 5.17
// models/gemma2/modeling_gemma2.py).
eager::Tensor gemma_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);
// Olmo2RMSNorm and its kin: weight * normed in fp32, which is then cast.
eager::Tensor wide_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);
// Llama4TextL2Norm: the same without a weight.
eager::Tensor plain_norm(eager::Graph& graph, std::int64_t width, const eager::Tensor& input);
// Gemma4RMSNorm: normed * weight, both in fp32; the root is a power. Undefined weight: none.
eager::Tensor gemma4_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);
// CohereLayerNorm: the mean is taken off twice, for the variance and for the result.
eager::Tensor centred_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);
// torch.nn.LayerNorm, which autocast runs in fp32; and NemotronLayerNorm1P, which casts what it is
// given to autocast's type.
eager::Tensor layer_norm(eager::Graph& graph, const Norm& norm, const eager::Tensor& input);
eager::Tensor plus_one_layer_norm(eager::Graph& graph, const Norm& norm,
                                  const eager::Tensor& input);

}  // namespace shardplan::huggingface
