#include "estimator/frameworks/pieces/huggingface/objectives/anchored.h"

#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::Graph;
using eager::InRow;
using eager::Tensor;

// DFT's, of rows without the last token of each sequence.
Tensor loss_by_own_probability(Graph& graph, const Tensor& rows, const Tensor& labels,
                               std::int64_t tokens) {
  const Tensor losses = eager::nll_losses(graph, eager::log_softmax(graph, rows), labels);
  const Tensor counted = eager::index(graph, losses, tokens);
  Tensor weights;
  {
    const eager::NoGrad no_grad(graph);
    weights = eager::exponential(graph, eager::scale(graph, counted));
  }
  return eager::mean(graph, eager::multiply(graph, counted, weights), tokens);
}

// The reference's probabilities times their logarithm less the model's, summed over the vocabulary
// (PyTorch ATen native/Loss.cpp kl_div).
Tensor divergence(Graph& graph, const Tensor& rows, const Tensor& of_reference,
                  const HeadShape& shape) {
  const Tensor log_softmax = eager::log_softmax(graph, rows);
  const Tensor probabilities = graph.make(of_reference.elements, of_reference.dtype);
  Tensor sums;
  {
    Tensor difference;
    {
      const Tensor product = eager::multiply(graph, probabilities, log_softmax);
      const Tensor entropy = graph.make(probabilities.elements, probabilities.dtype);
      difference = eager::subtract(graph, entropy, product);
    }
    sums = eager::sum(graph, difference, shape.vocab);
  }
  const Tensor counts = graph.make(sums.elements, DType::kFp32);
  return eager::mean(graph, eager::multiply(graph, sums, counts), sums.elements);
}

}  // namespace

// Rows of several sequences do not lie behind each other without the last token of each.
Tensor anchored_loss(Graph& graph, const Tensor& logits, const Tensor& of_reference,
                     const HeadShape& shape) {
  const Tensor wide = eager::to(graph, logits, DType::kFp32);
  const std::int64_t tokens = shape.tokens - shape.sequences;
  if (tokens == 0) {
    return eager::scale(graph, eager::mean(graph, wide, wide.elements));
  }
  const bool lie_apart = shape.sequences > 1;
  Tensor rows = eager::slice(graph, wide, tokens * shape.vocab);
  rows = lie_apart ? eager::laid_out(graph, rows) : rows;
  Tensor labels;
  {
    const InRow row(graph.tape, kTokensRow);
    labels = graph.make(tokens, DType::kInt64);
  }
  const Tensor reference = lie_apart ? graph.make(tokens * shape.vocab, of_reference.dtype)
                                     : of_reference.viewed(tokens * shape.vocab);
  const Tensor by_probability = loss_by_own_probability(graph, rows, labels, tokens);
  const Tensor by_distance = eager::scale(graph, divergence(graph, rows, reference, shape));
  return eager::add(graph, by_probability, by_distance);
}

}  // namespace shardplan::huggingface
