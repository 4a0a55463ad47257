// What options and a plan together ask Megatron-core for.
#pragma once

#include "estimator/plan/job.h"

namespace shardplan::megatron {

// Whether the plan is one of Megatron-FSDP.
bool is_megatron_fsdp(const Job& job, const Plan& plan);
// What it accumulates and reduces gradients in.
DType fsdp_gradient_dtype(const Plan& plan);
// Whether weight gradients are added to the main gradients by their products. The output layer
// hands Megatron-FSDP's main gradient to torch.matmul as `out`, which stops with an error where
// that is not of the product's type (core/tensor_parallel/layers.py:561-566): there the run has
// --no-gradient-accumulation-fusion, as docs/user-guide/features/custom_fsdp.md says.
bool fuses_weight_gradients(const Job& job, const Plan& plan);

}  // namespace shardplan::megatron
