// PyTorch's operators on CUDA: what each makes, saves and leaves, and what its derivative makes.
// Sources: tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp of PyTorch
// 2.11, and what the allocator recorded of them (data/measured/README.md, trainer_h200.jsonl).
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/eager/autograd.h"
#include "estimator/frameworks/pieces/eager/views.h"

namespace shardplan::eager {

DType promoted(DType a, DType b);

// The tensor itself where it has that type already.
Tensor to(Graph& graph, const Tensor& input, DType dtype);

// In the type that products compute in.
Tensor in_autocast(Graph& graph, const Tensor& input);

// --- pointwise; a smaller tensor is broadcast over the larger one ---
Tensor add(Graph& graph, const Tensor& a, const Tensor& b);
Tensor subtract(Graph& graph, const Tensor& a, const Tensor& b);
Tensor multiply(Graph& graph, const Tensor& a, const Tensor& b);
// Of every row with a row of weights. The second form is `rows * weights` in Python, which makes
// the weights' gradient first.
Tensor multiply_rows(Graph& graph, const Tensor& weights, const Tensor& rows);
Tensor multiply_by_row(Graph& graph, const Tensor& rows, const Tensor& weights);
// By, or of, a number of the host; a negation is the former.
Tensor scale(Graph& graph, const Tensor& input);
Tensor shift(Graph& graph, const Tensor& input);
Tensor square(Graph& graph, const Tensor& input);
Tensor power(Graph& graph, const Tensor& input);  // by a number of the host
Tensor reciprocal_root(Graph& graph, const Tensor& input);
Tensor silu(Graph& graph, const Tensor& input);  // gelu saves and makes as much
Tensor softplus(Graph& graph, const Tensor& input);
Tensor relu(Graph& graph, const Tensor& input);
Tensor exponential(Graph& graph, const Tensor& input);
Tensor tanh(Graph& graph, const Tensor& input);
Tensor sigmoid(Graph& graph, const Tensor& input);
// cap * tanh(input / cap).
Tensor soft_capped(Graph& graph, Tensor input);
// Of rows of `width` elements; the gradient of a sum is a view.
Tensor sum(Graph& graph, const Tensor& input, std::int64_t width);
Tensor mean(Graph& graph, const Tensor& input, std::int64_t width);
// Saves a mask of a byte for each element; none where the probability is 0.
Tensor dropout(Graph& graph, const Tensor& input, double probability);
// --- products ---
// input [rows, columns] times weight [outputs, columns], transposed; both in autocast's type.
struct LinearShape {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool flattens_input = true;  // of sequences: its gradient is a view of the product's
  bool is_function = true;     // F.linear, which others replace; else a product of matrices
};
Tensor linear(Graph& graph, const Tensor& input, const Tensor& weight, const LinearShape& shape,
              const Tensor& bias = {});

// Rows of a table [rows, width]; indices are int64.
struct TableShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
};
Tensor embedding(Graph& graph, const Tensor& indices, const Tensor& table, const TableShape& shape);

// --- loss ---
Tensor log_softmax(Graph& graph, const Tensor& logits);
Tensor nll_loss(Graph& graph, const Tensor& log_softmax, const Tensor& labels);
Tensor nll_losses(Graph& graph, const Tensor& log_softmax, const Tensor& labels);  // of each token
// Of both, of logits in fp32.
Tensor cross_entropy(Graph& graph, const Tensor& logits, const Tensor& labels);
// One element of each row of `width`, by its place in int64; its gradient lies in zeros.
Tensor gather(Graph& graph, const Tensor& input, const Tensor& places, std::int64_t width);
// Of rows of `width`: the exponentials of what is below the largest are made in one tensor.
Tensor log_sum_exp(Graph& graph, const Tensor& input, std::int64_t width);

}  // namespace shardplan::eager
