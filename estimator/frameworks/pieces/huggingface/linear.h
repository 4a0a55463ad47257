// A linear layer of a decoder: plain, quantized, with an adapter.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/plan/tuning.h"

namespace shardplan::huggingface {

struct Linear {
  eager::LinearShape shape;
  eager::Parameter weight;
  eager::Parameter bias;  // undefined: none
  QuantizedWeights quantized;
  std::vector<eager::Tensor> packed;  // of a quantized weight: data and scales

  // The adapter; rank 0: none.
  std::int64_t rank = 0;
  double dropout = 0;
  eager::Parameter a, b;
};

eager::Tensor project(eager::Graph& graph, Linear& linear, const eager::Tensor& input);

// Bytes of the tensors of a quantized weight: packed values, scales, and what else its blocks need.
// Sources: bitsandbytes 0.50 functional.py quantize_4bit, nn/modules.py Params4bit, Int8Params.
std::vector<std::int64_t> quantized_bytes(const QuantizedWeights& quantized,
                                          const eager::LinearShape& shape);

}  // namespace shardplan::huggingface
