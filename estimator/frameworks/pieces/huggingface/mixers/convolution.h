// A convolution of every channel over the tokens before it, by PyTorch's conv1d or by the package
// causal_conv1d. Sources: transformers 5.17 models/qwen3_next/modeling_qwen3_next.py
// causal_conv1d_fn; PyTorch 2.11 aten/src/ATen/native/Convolution.cpp, cuda/DepthwiseConv2d.cu;
// causal-conv1d 1.7.0 causal_conv1d_interface.py CausalConv1dFn, cpp_functions.py.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

struct ConvolutionSizes {
  std::int64_t sequence = 0;
  std::int64_t taps = 0;   // tokens that it sees
  bool by_kernel = false;  // of causal_conv1d
};

// Of rows that lie tokens before channels. PyTorch's output has taps - 1 tokens more than are
// looked at.
eager::Tensor causal_convolution(eager::Graph& graph, const eager::Tensor& rows,
                                 const eager::Tensor& weight, const eager::Tensor& bias,
                                 const ConvolutionSizes& sizes);
// With silu behind it, which the kernel runs itself.
eager::Tensor activated_convolution(eager::Graph& graph, const eager::Tensor& rows,
                                    const eager::Tensor& weight, const eager::Tensor& bias,
                                    const ConvolutionSizes& sizes);

// causal_conv1d_bwd_function: gradients of the weight and the bias are summed in fp32, and cast to
// their types. `input`: none where it is written into a tensor that is there.
struct ConvolutionGradients {
  eager::Tensor input, weight, bias;
};
ConvolutionGradients kernel_convolution_backward(eager::Graph& graph, const eager::Tensor& input,
                                                 const eager::Tensor& weight,
                                                 const eager::Tensor& bias, bool makes_input);

}  // namespace shardplan::huggingface
