// LFM2's mixer: a convolution over a few tokens between two products with gates. Source:
// transformers 5.17 models/lfm2/modeling_lfm2.py Lfm2ShortConv.forward.
#pragma once

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/mixers/convolution.h"

namespace shardplan::huggingface {

struct ShortConvolution {
  Linear input;  // both gates and what is convolved
  eager::Parameter weight, bias;
  Linear output;

  bool is_defined() const { return output.shape.inputs > 0; }
};

eager::Tensor short_convolution(eager::Graph& graph, ShortConvolution& mixer,
                                const eager::Tensor& input, const ConvolutionSizes& sizes);

}  // namespace shardplan::huggingface
