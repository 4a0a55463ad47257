#include "estimator/frameworks/pieces/huggingface/objectives/log_probabilities.h"

#include <algorithm>
#include <utility>

namespace shardplan::huggingface {

using eager::Graph;
using eager::Tensor;
using eager::Tensors;

namespace {

Tensors sequences_of(Graph& graph, const Tensor& rows, const HeadShape& shape) {
  const auto count = static_cast<std::size_t>(shape.sequences);
  return eager::split_into(graph, rows,
                           std::vector<std::int64_t>(count, rows.elements / shape.sequences));
}

}  // namespace

Tensor without_last(Graph& graph, const Tensor& all, const HeadShape& shape) {
  return eager::slice(graph, all, (shape.tokens - shape.sequences) * shape.vocab);
}

Tensor log_probabilities(Graph& graph, const Tensor& rows, const Tensor& labels,
                         const HeadShape& shape) {
  const std::int64_t tokens = rows.elements / shape.vocab;
  Tensors parts;
  if (rows.dtype != DType::kFp32) {
    Tensor before;  // a name of Python's keeps one sequence's until the next one's is made
    for (const Tensor& sequence : sequences_of(graph, rows, shape)) {
      Tensor log_softmax = eager::log_softmax(graph, sequence);
      parts.push_back(
          eager::gather(graph, log_softmax, labels.viewed(tokens / shape.sequences), shape.vocab));
      before = std::move(log_softmax);
    }
    return eager::cat(graph, parts);
  }
  const Tensor selected = eager::gather(graph, rows, labels.viewed(tokens), shape.vocab);
  for (const Tensor& sequence : sequences_of(graph, rows, shape)) {
    parts.push_back(eager::log_sum_exp(graph, sequence, shape.vocab));
  }
  return eager::subtract(graph, selected, eager::cat(graph, parts));
}

Tensor log_probabilities_at_once(Graph& graph, const Tensor& rows, const Tensor& labels,
                                 const HeadShape& shape) {
  const std::int64_t tokens = rows.elements / shape.vocab;
  Tensor log_softmax;
  {
    const bool lie_apart = shape.sequences > 1;
    const Tensor laid = lie_apart ? graph.make(rows.elements, rows.dtype) : Tensor{};
    log_softmax = eager::log_softmax(graph, rows);
  }
  return eager::gather(graph, log_softmax, labels.viewed(tokens), shape.vocab);
}

Tensor compared(Graph& graph, const Tensor& log_probabilities, const Tensor& of_reference,
                const HeadShape& shape) {
  const std::int64_t of_sequence = log_probabilities.elements / shape.sequences;
  Tensor sums = eager::sum(graph, log_probabilities, of_sequence);
  if (of_reference.is_defined()) {
    const Tensor constants = eager::sum(graph, of_reference, of_sequence);
    sums = eager::subtract(graph, sums, constants);
  }
  const Tensor losses = eager::silu(graph, sums);  // log_sigmoid saves and makes as much
  return eager::mean(graph, losses, losses.elements);
}

Tensor chosen_cross_entropy(Graph& graph, const Tensor& all, const Tensor& labels,
                            const HeadShape& shape) {
  const std::int64_t sequences = shape.sequences / 2;
  const std::int64_t tokens = (shape.tokens - shape.sequences) / 2;
  const Tensor chosen = eager::slice(graph, all, all.elements / 2);
  Tensor rows = eager::slice(graph, chosen, tokens * shape.vocab);
  if (sequences > 1) {
    rows = eager::laid_out(graph, rows);
  }
  return eager::cross_entropy(graph, rows, labels.viewed(tokens));
}

// A chunk's log-softmax stays until the next one is made.
void log_entropy_of_rows(Graph& graph, const Tensor& rows, const HeadShape& shape) {
  constexpr std::int64_t kRows = 128;
  const eager::NoGrad no_grad(graph);
  const std::int64_t tokens = rows.elements / shape.vocab;
  const Tensor flat = shape.sequences > 1 ? graph.make(rows.elements, rows.dtype) : Tensor{};
  Tensor log_softmax;
  for (std::int64_t first = 0; first < tokens; first += kRows) {
    const std::int64_t elements = std::min(kRows, tokens - first) * shape.vocab;
    log_softmax = graph.make(elements, rows.dtype);
    const Tensor probabilities = graph.make(elements, rows.dtype);
    const Tensor terms = graph.make(elements, rows.dtype);
  }
}

void log_means_of_halves(Graph& graph, const Tensor& rows) {
  for (int half = 0; half < 2; ++half) {
    const Tensor copy = graph.make(rows.elements / 2, rows.dtype);
  }
}

}  // namespace shardplan::huggingface
