// Liger's kernels in place of a model's operators. Source: linkedin/Liger-Kernel 0.8.0
// ops/rms_norm.py, rope.py, swiglu.py.
#pragma once

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

// Saves its input and the reciprocal root of every row in fp32. The input's gradient is written
// over the output's unless it may not be; the weight's is summed over rows by each multiprocessor,
// then over those.
Tensor liger_norm(Graph& graph, const Tensor& weight, const Tensor& input,
                  bool reuses_gradient = true);
// The same of the input and, behind it, a product with silu of a gate, which is saved as well; both
// gradients are tensors of their own. Source: axolotl 067b021 kernels/rms_norm_gated.py.
Tensor gated_norm(Graph& graph, const Tensor& weight, const Tensor& input, const Tensor& gate);
// Turned in place, either way, by the same cosines and sines.
Tensor liger_rotate(Graph& graph, const Tensor& input, const Tensor& cosines, const Tensor& sines);
// silu(gate) * up; gradients are written over both.
Tensor liger_swiglu(Graph& graph, const Tensor& gate, const Tensor& up);

}  // namespace shardplan::eager
