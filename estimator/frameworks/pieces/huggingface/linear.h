// A linear layer of a decoder: plain, quantized, with an adapter.
#pragma once

#include <optional>

#include "estimator/frameworks/pieces/eager/collectives.h"
#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/plan/tuning.h"

namespace shardplan::huggingface {

// What of a weight ranks of tensor parallelism share out (colwise, rowwise).
enum class Division { kNone, kOutputs, kInputs };

struct Linear {
  eager::LinearShape shape;  // of this rank's part
  Division division = Division::kNone;
  eager::Divided divided = eager::Divided::kDtensor;
  eager::Parameter weight;
  eager::Parameter bias;  // undefined: none
  QuantizedWeights quantized;
  DType compute_dtype = DType::kBf16;  // of 4-bit weights: bnb_4bit_compute_dtype
  std::vector<eager::Tensor> packed;   // of a quantized weight that is no parameter

  // Weights that are trained to be quantized: of a group that shares a scale; 0: they are not.
  std::int64_t fake_group = 0;
  eager::Tensors fake_scales;  // of the inputs that it saw last

  // The adapter; rank 0: none.
  std::int64_t rank = 0;
  double dropout = 0;
  DType adapter_dtype = DType::kFp32;  // as its module shows it outside its own forward pass
  eager::Parameter a, b;
  eager::Parameter scales;     // AdaLoRA's E, of A's rows; undefined: none
  eager::Tensor rank_number;   // and what it divides by
  eager::Parameter magnitude;  // DoRA's, of every output; undefined: none
  // OFT's, undefined: none. Rows are blocks of inputs, columns what lies above a block's diagonal.
  eager::Parameter rotation;
  std::int64_t block = 0;        // inputs that are turned together
  eager::Tensors block_indices;  // of rows and columns above the diagonal
  const bool* is_off = nullptr;  // while the base layer runs alone (disable_adapter); none: never
};

// Packed values are bytes, or a frozen parameter of the type `stored`, which is sharded; scales
// belong to the module. All are of the row.
void load_quantized(eager::Graph& graph, Holder& holder, Linear& linear,
                    std::optional<DType> stored, const eager::Label& label);

// Inputs that OFT turns together: `size`, or the number nearest to it that divides all of them.
// Source: peft 0.21 tuners/oft/layer.py adjust_oft_parameters.
std::int64_t rotated_together(std::int64_t inputs, std::int64_t size);

// The weight as a product in that type reads it: a quantized one unpacked.
eager::Tensor unpacked_weight(eager::Graph& graph, const Linear& linear, DType dtype);

// The product alone, without an adapter and without a call of a module.
eager::Tensor unadapted_product(eager::Graph& graph, Linear& linear, const eager::Tensor& input);

eager::Tensor project(eager::Graph& graph, Linear& linear, const eager::Tensor& input);

// Bytes of the tensors of a quantized weight: packed values first, scales, and what else its blocks
// need.
// Sources: bitsandbytes 0.50 functional.py quantize_4bit, nn/modules.py Params4bit, Int8Params.
std::vector<std::int64_t> quantized_bytes(const QuantizedWeights& quantized,
                                          const eager::LinearShape& shape);

}  // namespace shardplan::huggingface
