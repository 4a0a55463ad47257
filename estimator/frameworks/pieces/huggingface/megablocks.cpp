#include "estimator/frameworks/pieces/huggingface/megablocks.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// Rows of all experts together: each has room for its share of all, a factor of 1
// (expert_capacity).
std::int64_t rows_of(const ExpertSizes& sizes) {
  return sizes.experts * std::max<std::int64_t>(sizes.tokens * sizes.chosen / sizes.experts, 1);
}

// Zeros for each chosen expert of a token, filled and summed.
Tensor summed_rows(Graph& graph, const ExpertSizes& sizes, DType dtype) {
  const Tensor all = graph.make(sizes.tokens * sizes.chosen * sizes.hidden, dtype);
  return graph.make(sizes.tokens * sizes.hidden, dtype);
}

// Outside autocast, in its type (ops/stk_autocast.py custom_fwd).
DType products_of(const Graph& graph, const Tensor& input) {
  return graph.autocast.value_or(input.dtype);
}

// BinnedGatherOp: zeros, and what tokens fill of them.
Tensor gathered(Graph& graph, const Tensor& hidden, const Tensor& places,
                const ExpertSizes& sizes) {
  NodeBuilder node(graph, {&hidden});
  const DType dtype = products_of(graph, hidden);
  const Tensor cast = eager::to(graph, hidden.detached(), dtype);
  if (node.is_needed()) {
    node.save(places);
  }
  return node.finish(graph.make(rows_of(sizes) * sizes.hidden, dtype), [=](BackwardCall& call) {
    const Tensor saved_places = call.saved(0);
    return Tensors{summed_rows(call.graph, sizes, dtype)};
  });
}

// BinnedScatterOp saves the rows, their places and weights.
Tensor scattered(Graph& graph, const Tensor& rows, const Tensor& places, const Tensor& weights,
                 const ExpertSizes& sizes) {
  NodeBuilder node(graph, {&rows, &weights});
  const DType dtype = products_of(graph, rows);
  const Tensor cast = eager::to(graph, weights.detached(), dtype);
  if (node.is_needed()) {
    node.save(rows);
    node.save(places);
    node.save(cast);
  }
  return node.finish(summed_rows(graph, sizes, dtype), [=](BackwardCall& call) {
    const Tensor saved_rows = call.saved(0);
    const Tensor saved_weights = call.saved(2);
    Tensor of_rows = call.graph.make(saved_rows.elements, dtype);
    Tensor of_weights = call.wants(1) ? call.graph.make(saved_weights.elements, dtype) : Tensor{};
    return Tensors{std::move(of_rows), std::move(of_weights)};
  });
}

// torch.bmm of every expert's rows and matrix. Derivatives of the matrices, then of the rows.
Tensor batched_product(Graph& graph, const Tensor& given, const Tensor& matrices,
                       std::int64_t outputs) {
  const Tensor rows = eager::in_autocast(graph, given);
  const Tensor weights = eager::in_autocast(graph, matrices);
  NodeBuilder node(graph, {&rows, &weights});
  if (node.is_needed() && rows.requires_grad()) {
    node.save(weights);
  }
  if (node.is_needed() && weights.requires_grad()) {
    node.save(rows);
  }
  const std::int64_t of_rows = rows.elements;
  const std::int64_t of_weights = weights.elements;
  const DType dtype = rows.dtype;
  return node.finish(graph.make_product(outputs, dtype), [=](BackwardCall& call) {
    Tensors saved;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
      }
    }
    Tensors gradients(2);
    if (call.wants(1)) {
      const InRow row(call.graph.tape, eager::kWeightGradientsRow);
      gradients[1] = call.graph.make_product(of_weights, dtype);
    }
    if (call.wants(0)) {
      gradients[0] = call.graph.make_product(of_rows, dtype);
    }
    return gradients;
  });
}

// Added in place, to all rows of an expert.
Tensor with_bias(Graph& graph, const Tensor& rows, const Tensor& biases) {
  NodeBuilder node(graph, {&rows, &biases});
  const std::int64_t elements = biases.elements;
  const DType dtype = biases.dtype;
  Tensor output = rows;
  return node.finish(std::move(output), [=](BackwardCall& call) {
    Tensor of_biases = call.wants(1) ? call.graph.make(elements, dtype) : Tensor{};
    return Tensors{std::move(call.gradients[0]), std::move(of_biases)};
  });
}

}  // namespace

Tensor megablocks_forward(Graph& graph, const Experts& experts, const Tensor& hidden,
                          const Tensor& weights, const ExpertSizes& sizes) {
  // Of all experts' scores, which nothing reads (router_scores).
  const Tensor scores = graph.make(sizes.tokens * sizes.experts, products_of(graph, hidden));
  const std::int64_t rows = rows_of(sizes);
  const Tensor places = graph.make(sizes.tokens * sizes.chosen, DType::kInt32);
  const Tensor bins = graph.make(sizes.tokens * sizes.chosen, DType::kInt32);
  Tensor output;
  {
    const Tensor input = gathered(graph, hidden, places, sizes);
    output = batched_product(graph, input, experts.gate_up.data, rows * 2 * sizes.ffn);
    output = eager::add(graph, output, experts.gate_up_bias.data);
    output = activated_rows(graph, output, sizes);
    output = batched_product(graph, output, experts.down.data, rows * sizes.hidden);
    output = with_bias(graph, output, experts.down_bias.data);
  }
  return scattered(graph, output, places, weights, sizes);
}

}  // namespace shardplan::huggingface
