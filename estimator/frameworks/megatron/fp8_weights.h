// What Megatron-LM and Transformer Engine hold of the weights of linear layers in fp8.
//
// Sources: Transformer Engine v2.9 pytorch/csrc/quantizer.cpp, pytorch/tensor/{float8_tensor,
// float8_blockwise_tensor,mxfp8_tensor}.py, common/transformer_engine.cpp
// (nvte_is_non_tn_fp8_gemm_supported); Megatron-LM core_v0.16.1 core/distributed/
// {distributed_data_parallel,param_and_grad_buffer}.py.
#pragma once

#include <cstdint>

#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/job.h"

namespace shardplan::megatron {

// --fp8-param-gather: linear layers are built in fp8, and no bf16 copy of their weights exists.
bool keeps_fp8_weights(const Job& job, const Plan& plan);

// With mxfp8 on top of it (--reuse-grad-buf-for-mxfp8-param-ag): values scaled along both sides
// cannot be gathered in parts, so that all parameters are gathered in bf16, those in fp8 through
// their gradients' buffer, the others through one of their own, and cast or copied from there.
bool gathers_through_gradients(const Job& job, const Plan& plan);

// One scale for all values of a tensor: delayed and tensorwise.
bool fp8_scales_tensors(const Job& job);

// Scales of the largest values of steps before.
bool uses_delayed_scaling(const Job& job, const Plan& plan);

// Copies in fp8 of what two products read along different sides: a weight, for forward and for its
// input gradient; an output gradient. One value a tensor scales both alike, and from compute
// capability 10.0 on products take either layout; below, one is the other transposed. A weight's
// are written anew in every step, and their memory is kept.
std::int64_t fp8_copies(const Job& job);

// Bytes of the scales of all copies of one weight, padded as its products want them. mxfp8: one of
// 1 byte for 32 values along a side, [rows, columns / 32] to multiples of [128, 4] and
// [rows / 32, columns] to [4, 128]; blockwise: one of 4 bytes for 128 x 128 values, both
// [rows / 128, columns / 128] and its transpose, the last side to a multiple of 4.
std::int64_t fp8_scale_bytes(const Job& job, const WeightShape& weight);

// Bytes of `elements` activations in fp8 with their scales, in one layout: 1 byte for 32 values, or
// 4 for 128.
std::int64_t fp8_activation_bytes(const Job& job, std::int64_t elements);

// Bytes that kernels move in every step to have weights in fp8, per weight of a linear layer that
// the rank holds: bf16 ones are read and written in every layout, with a scale a tensor of its own
// (tensorwise) after they were read for their largest value. With --fp8-param-gather the layout
// that was gathered is read and the other written; with mxfp8 bf16 is read from the gradients'
// buffer, both are written and the buffer is zeroed.
double fp8_weight_kernel_bytes(const Job& job, const Plan& plan);

// Of these with --fp8-param-gather, besides, per weight that the rank updates: bf16 is read, but
// for delayed scaling once more before for the largest values, and fp8 written (Transformer Engine
// v2.9 pytorch/tensor/utils.py, cast_master_weights_to_fp8). None with mxfp8.
double fp8_cast_kernel_bytes(const Job& job, const Plan& plan);

}  // namespace shardplan::megatron
