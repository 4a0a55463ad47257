// What recurrences in chunks of tokens are made of, in fp32: padding to whole chunks, sums along
// chunks, and sums of products that are made whole.
#pragma once

#include "estimator/frameworks/pieces/eager/operations.h"

namespace shardplan::huggingface {

// Zeros behind the last token; the gradient is copied without them (constant_pad_nd, which copies
// without any, too).
eager::Tensor padded(eager::Graph& graph, const eager::Tensor& input, std::int64_t elements);

// cumsum; its gradient is turned around, summed and turned back.
eager::Tensor cumulative(eager::Graph& graph, const eager::Tensor& input);

// Filled where a mask of bytes says so, in a tensor of its own of so many elements; the mask is
// saved, and the gradient filled likewise.
eager::Tensor filled(eager::Graph& graph, const eager::Tensor& input, const eager::Tensor& mask,
                     std::int64_t elements);

// A product of so many elements, over which both factors are broadcast.
eager::Tensor outer_product(eager::Graph& graph, const eager::Tensor& a, const eager::Tensor& b,
                            std::int64_t elements);

}  // namespace shardplan::huggingface
