#include "estimator/frameworks/pieces/huggingface/dispatched_experts.h"

#include <cmath>
#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/plan/number.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

struct Received {
  Tensor tokens;
  Tensor weights;
  Tensor places;  // of chosen experts in this rank's, -1: another rank's
  Tensors handle;
};

// Which ranks tokens go to and come from, kept by both functions' contexts.
Tensors handle_of(Graph& graph, const ExpertSizes& sizes, std::int64_t received,
                  std::int64_t ranks) {
  Tensors handle = {graph.make(sizes.tokens * ranks, DType::kBool)};
  handle.push_back(graph.make(received, DType::kInt32));
  handle.push_back(graph.make(sizes.tokens * ranks, DType::kInt32));
  return handle;
}

// The gradients of what was received go back as tokens come: added up by token.
Received dispatch(Graph& graph, const Tensor& hidden, const Tensor& weights,
                  const ExpertSizes& sizes, std::int64_t ranks) {
  NodeBuilder node(graph, {&hidden, &weights});
  const std::int64_t received = received_tokens(sizes, ranks);
  Received found;
  found.handle = handle_of(graph, sizes, received, ranks);
  Tensors outputs;
  {
    const InRow row(graph.tape, eager::kExpertExchangeRow);
    outputs.push_back(graph.make(received * sizes.hidden, hidden.dtype));
    found.places = graph.make(received * sizes.chosen, DType::kInt64);
    outputs.push_back(graph.make(received * sizes.chosen, DType::kFp32));
  }
  if (node.is_needed()) {
    for (const Tensor& each : found.handle) { node.keep(each); }
  }
  const std::int64_t of_hidden = hidden.elements;
  const std::int64_t of_weights = weights.elements;
  const DType dtype = hidden.dtype;
  outputs = node.finish(std::move(outputs), [=](BackwardCall& call) {
    Tensors gradients = {call.graph.make(of_hidden, dtype)};
    gradients.push_back(call.graph.make(of_weights, DType::kFp32));
    return gradients;
  });
  found.tokens = std::move(outputs[0]);
  found.weights = std::move(outputs[1]);
  return found;
}

Tensor combine(Graph& graph, const Tensor& rows, const ExpertSizes& sizes, const Tensors& handle) {
  NodeBuilder node(graph, {&rows});
  if (node.is_needed()) {
    for (const Tensor& each : handle) { node.keep(each); }
  }
  const std::int64_t elements = rows.elements;
  const DType dtype = rows.dtype;
  return node.finish(graph.make(sizes.tokens * sizes.hidden, dtype), [=](BackwardCall& call) {
    const InRow row(call.graph.tape, eager::kExpertExchangeRow);
    return Tensors{call.graph.make(elements, dtype)};
  });
}

// Choices of other ranks' experts become those of the first one, of weight 0 (_mask_sentinels).
Tensor weights_here(Graph& graph, const Received& received) {
  const std::int64_t elements = received.places.elements;
  const Tensor valid = graph.make(elements, DType::kFp32);
  return eager::multiply(graph, received.weights, valid);
}

}  // namespace

// 1 - C(experts elsewhere, chosen) / C(experts, chosen).
std::int64_t received_tokens(const ExpertSizes& sizes, std::int64_t ranks) {
  const std::int64_t elsewhere = sizes.experts - sizes.experts / ranks;
  double misses = 1;
  for (std::int64_t i = 0; i < sizes.chosen; ++i) {
    misses *= number(elsewhere - i) / number(sizes.experts - i);
  }
  return static_cast<std::int64_t>(std::ceil(number(ranks * sizes.tokens) * (1 - misses)));
}

Tensor dispatched_experts(Graph& graph, const Experts& experts, const Tensor& hidden,
                          const Tensor& weights, const ExpertSizes& sizes, std::int64_t ranks) {
  const Tensor narrow = eager::to(graph, hidden, DType::kBf16);
  const Tensor wide = eager::to(graph, weights, DType::kFp32);
  Tensor output;
  {
    Received received = dispatch(graph, narrow, wide, sizes, ranks);
    const Tensor of_chosen = weights_here(graph, received);
    const Tensor safe_places = graph.make(received.places.elements, DType::kInt64);
    ExpertSizes own = sizes;
    own.tokens = received_tokens(sizes, ranks);
    own.experts = sizes.experts / ranks;
    const Tensor rows = experts_forward(graph, experts, received.tokens, of_chosen, own);
    output = combine(graph, rows, sizes, received.handle);
  }
  return eager::to(graph, output, hidden.dtype);
}

}  // namespace shardplan::huggingface
