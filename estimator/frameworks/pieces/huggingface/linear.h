// A linear layer of a decoder: plain, quantized, with an adapter.
#pragma once

#include <optional>

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/tuning.h"

namespace shardplan::huggingface {

struct Linear {
  eager::LinearShape shape;
  eager::Parameter weight;
  eager::Parameter bias;  // undefined: none
  QuantizedWeights quantized;
  DType compute_dtype = DType::kBf16;  // of 4-bit weights: bnb_4bit_compute_dtype
  std::vector<eager::Tensor> packed;   // of a quantized weight that is no parameter

  // The adapter; rank 0: none.
  std::int64_t rank = 0;
  double dropout = 0;
  DType adapter_dtype = DType::kFp32;  // as its module shows it outside its own forward pass
  eager::Parameter a, b;
  eager::Parameter magnitude;  // DoRA's, of every output; undefined: none
};

// Packed values are bytes, or a frozen parameter in `floats`, which is sharded; scales belong to
// the module.
void load_quantized(eager::Graph& graph, Holder& holder, Linear& linear,
                    std::optional<DType> floats);

// The weight as a product in that type reads it: a quantized one unpacked.
eager::Tensor unpacked_weight(eager::Graph& graph, const Linear& linear, DType dtype);

eager::Tensor project(eager::Graph& graph, Linear& linear, const eager::Tensor& input);

// Bytes of the tensors of a quantized weight: packed values first, scales, and what else its blocks
// need.
// Sources: bitsandbytes 0.50 functional.py quantize_4bit, nn/modules.py Params4bit, Int8Params.
std::vector<std::int64_t> quantized_bytes(const QuantizedWeights& quantized,
                                          const eager::LinearShape& shape);

}  // namespace shardplan::huggingface
