// A linear layer as a function of Python that stands in for F.linear: DeepSpeed's
// LinearFunctionForZeroStage3, which zero.Init puts there (memory_efficient_linear). Sources:
// DeepSpeed 0.19.6 runtime/zero/linear.py, partition_parameters.py.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::eager {

// Saves its input and its weight, whether or not gradients need them, once its output is there; the
// input's gradient is made before the weight's, and is no view.
Tensor python_linear(Graph& graph, const Tensor& input, const Tensor& weight,
                     const LinearShape& shape, const Tensor& bias);

}  // namespace shardplan::eager
