// A convolution of every channel over the tokens before it, by PyTorch's conv1d. Source:
// transformers 5.17 models/qwen3_next/modeling_qwen3_next.py causal_conv1d_fn; PyTorch 2.11
// aten/src/ATen/native/Convolution.cpp, cuda/DepthwiseConv2d.cu.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

struct ConvolutionSizes {
  std::int64_t sequence = 0;
  std::int64_t taps = 0;  // tokens that it sees
};

// Of rows that lie tokens before channels. Its output has taps - 1 tokens more than are looked at.
eager::Tensor causal_convolution(eager::Graph& graph, const eager::Tensor& rows,
                                 const eager::Tensor& weight, const eager::Tensor& bias,
                                 const ConvolutionSizes& sizes);
// With silu behind it.
eager::Tensor activated_convolution(eager::Graph& graph, const eager::Tensor& rows,
                                    const eager::Tensor& weight, const eager::Tensor& bias,
                                    const ConvolutionSizes& sizes);

}  // namespace shardplan::huggingface
