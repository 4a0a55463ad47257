// Linear layers that are trained to be quantized: what torchao's fake quantization of inputs and
// weights makes and keeps. Sources: torchao 0.18 quantization/qat/linear.py FakeQuantizedLinear,
// qat/fake_quantizer.py IntxFakeQuantizer, Int4WeightFakeQuantizer, quant_primitives.py
// _do_fake_quantize_affine; what autograd saves was read with its hooks on the CPU.
#pragma once

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

// Rows of `width` elements in 8 bits and back, a scale and a zero point for each, without a
// gradient. `held` becomes the scale and the zero point of every row, which the module has until it
// runs again.
Tensor fake_quantized_rows(Graph& graph, const Tensor& input, std::int64_t width, Tensors& held);

// Groups of a weight in 4 bits and back in fp32; the scale of each has a gradient.
Tensor fake_quantized_groups(Graph& graph, const Tensor& weight, std::int64_t group);

}  // namespace shardplan::eager
