// Parts of tensors, tensors put together, and copies that lie otherwise. Sources as of
// operations.h.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

// cat((-second half, first half)) of every row (rotate_half).
Tensor rotate_half(Graph& graph, const Tensor& input);
// A view of a part, and a copy of rows by their places. Either gradient lies in zeros of the whole
// tensor.
Tensor slice(Graph& graph, const Tensor& input, std::int64_t elements);
Tensor index(Graph& graph, const Tensor& input, std::int64_t elements);
// Views of parts, whose gradients are put together; and tensors put together.
Tensors split(Graph& graph, const Tensor& input, std::int64_t first_elements);
Tensors split_into(Graph& graph, const Tensor& input, const std::vector<std::int64_t>& elements);
Tensor cat(Graph& graph, const Tensor& a, const Tensor& b);
Tensor cat(Graph& graph, const Tensors& parts);
// A copy that lies otherwise, whose gradient lies as it comes.
Tensor laid_out(Graph& graph, const Tensor& input);
// Views whose gradient is copied to lie as the tensor did.
Tensor copied_back(Graph& graph, const Tensor& input);

}  // namespace shardplan::eager
