// What every linear layer of a Megatron block has beside its products.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// Kept, or dropped in forward and computed again in backward, from `replayed` on.
void keep_or_recompute(MegatronBlock& block, bool recomputed, Step replayed, std::string_view name,
                       std::int64_t elements, DType dtype, Life life, std::string_view formula);

// CheckpointWithoutOutput copies what it computed again into the storage that the consumers of the
// output saved, and keeps its own tensor until its backward has run (core_v0.16.1
// core/tensor_parallel/random.py:664-722).
inline constexpr std::string_view kComputedAgain =
    "computed again, beside the copy in the storage that was discarded";

// Whether gradients are added to the main ones on another stream: Megatron-LM wraps the model on a
// stream of its own, and autograd's accumulation runs where that was (core_v0.16.1
// training/training.py, get_model; torch/csrc/autograd/engine.cpp). Its memory is free once
// that stream got there: taken as the next backward pass at the latest. Megatron-FSDP copies them
// into its buckets.
bool accumulates_beside(const Job& job, const Plan& plan);

// Weight gradients of `count` linear layers of these elements in the parameters' dtype, where they
// are not added into the main gradient by the products themselves (gradient_accumulation_fusion
// off); else the first of its shape makes a dummy of its size, a row of the state.
void add_weight_gradient(MegatronBlock& block, std::string_view name, std::int64_t elements,
                         Step step, std::int64_t count = 1);

// Output gradient of a linear layer under fp8, cast for its two products (Transformer Engine
// pytorch/module/base.py, grad_output_preprocess).
void add_fp8_cast(MegatronBlock& block, std::string_view name, std::int64_t elements, Step step);
// The same before it is gathered: this rank's part, row-wise alone with one scale a tensor
// (pytorch/distributed.py, _all_gather_fp8).
void add_fp8_part(MegatronBlock& block, std::string_view name, std::int64_t elements, Step step);

}  // namespace shardplan::megatron
