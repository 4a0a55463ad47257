#include "estimator/frameworks/pieces/eager/collectives.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"

namespace shardplan::eager {

Tensor with_summed_gradient(Graph& graph, const Tensor& input, Divided divided) {
  NodeBuilder node(graph, {&input});
  Tensor alias = input;
  return node.finish(std::move(alias), [divided](BackwardCall& call) {
    if (divided == Divided::kPlain) {
      return std::move(call.gradients);
    }
    const Tensor& partial = call.gradients[0];
    return Tensors{call.graph.make(partial.elements, partial.dtype)};
  });
}

Tensor summed_over_ranks(Graph& graph, const Tensor& partial, Divided divided) {
  if (divided == Divided::kPlain) {
    return partial;
  }
  NodeBuilder node(graph, {&partial});
  return node.finish(graph.make(partial.elements, partial.dtype),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

// A DTensor's parts arrive one behind the other, and are put beside each other. Plain tensors are
// gathered into a list, by way of one tensor of all parts (ProcessGroupNCCL.cpp, allgather).
Tensor gathered_columns(Graph& graph, const Tensor& own, std::int64_t ranks, Divided divided) {
  NodeBuilder node(graph, {&own});
  const std::int64_t elements = own.elements;
  const DType dtype = own.dtype;
  Tensor all;
  {
    Tensor parts;
    {
      const InRow row(graph.tape, kGatheredPartsRow);
      if (divided == Divided::kDtensor) {
        parts = graph.make(ranks * elements, dtype);
      } else {
        parts = graph.make((ranks - 1) * elements, dtype);
        const Tensor flat = graph.make(ranks * elements, dtype);
      }
    }
    all = graph.make(ranks * elements, dtype);
  }
  return node.finish(std::move(all),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(elements, dtype)}; });
}

}  // namespace shardplan::eager
