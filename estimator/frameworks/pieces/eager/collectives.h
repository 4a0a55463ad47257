// Collectives of layers that are divided over ranks, as autograd sees them. Sources: PyTorch 2.11
// torch/distributed/tensor/_redistribute.py, _collective_utils.py and
// torch/distributed/_functional_collectives.py (DTensor); transformers 5.17
// distributed/tensor_parallel.py, whose layers use them, and 5.14.1
// integrations/tensor_parallel.py, which calls collectives on plain tensors.
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

// How ranks hold what is divided. A DTensor's collectives write new tensors, those of plain tensors
// write over their input.
enum class Divided { kDtensor, kPlain };

// The tensor itself, whose gradient is the sum of all ranks' (ColwiseParallel's input).
Tensor with_summed_gradient(Graph& graph, const Tensor& input, Divided divided);

// The sum of all ranks' tensors, whose gradient goes on as it is (RowwiseParallel's output).
Tensor summed_over_ranks(Graph& graph, const Tensor& partial, Divided divided);

// Columns of all ranks beside each other: [rows, ranks * columns] of each one's [rows, columns].
// The gradient is a copy of this rank's columns (colwise_gather_output).
Tensor gathered_columns(Graph& graph, const Tensor& own, std::int64_t ranks, Divided divided);

}  // namespace shardplan::eager
