#include "estimator/frameworks/pieces/huggingface/dense_experts.h"

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

// torch.bmm: derivatives of the weights, then of the rows.
Tensor batched_product(Graph& graph, const Tensor& rows, const Tensor& weights,
                       std::int64_t outputs) {
  const Tensor w = graph.cast_weight(weights);
  const Tensor x = eager::in_autocast(graph, rows);
  NodeBuilder node(graph, {&x, &w});
  if (node.is_needed()) {
    if (x.requires_grad()) {
      node.save(w);
    }
    if (w.requires_grad()) {
      node.save(x);
    }
  }
  const std::int64_t of_x = x.elements;
  const std::int64_t of_w = w.elements;
  const DType dtype = x.dtype;
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
      gradients[1] = call.graph.make_product(of_w, dtype);
    }
    if (call.wants(0)) {
      gradients[0] = call.graph.make_product(of_x, dtype);
    }
    return gradients;
  });
}

// Tensor.repeat: the gradient of its copies is summed.
Tensor repeated(Graph& graph, const Tensor& input, std::int64_t times) {
  NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements;
  const DType dtype = input.dtype;
  return node.finish(graph.make(times * elements, dtype),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(elements, dtype)}; });
}

// scatter_ of the highest scores into a tensor of the lowest numbers: saves their places.
Tensor highest_alone(Graph& graph, const Tensor& scores, const ExpertSizes& sizes) {
  const std::int64_t chosen = sizes.tokens * sizes.chosen;
  NodeBuilder node(graph, {&scores});
  const Tensor values = graph.make(chosen, scores.dtype);
  const Tensor places = graph.make(chosen, DType::kInt64);
  if (node.is_needed()) {
    node.save(places);
  }
  const std::int64_t all = scores.elements;
  const DType dtype = scores.dtype;
  return node.finish(graph.make(all, dtype), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    const Tensor of_values = call.graph.make(chosen, dtype);
    return Tensors{call.graph.make(all, dtype)};
  });
}

}  // namespace

Tensor scores_of_all(Graph& graph, const Experts& experts, const Tensor& hidden,
                     const ExpertSizes& sizes) {
  const Tensor logits =
      eager::linear(graph, hidden, experts.router.data,
                    {.inputs = sizes.hidden, .outputs = sizes.experts, .flattens_input = false});
  const Tensor highest = highest_alone(graph, logits, sizes);
  const Tensor wide = eager::sigmoid(graph, eager::to(graph, highest, DType::kFp32));
  return eager::to(graph, wide, highest.dtype);
}

// Gate and up are views of one product; the activation and their product are kept.
Tensor dense_experts_forward(Graph& graph, const Experts& experts, const Tensor& hidden,
                             const Tensor& scores, const ExpertSizes& sizes) {
  const std::int64_t rows = sizes.experts * sizes.tokens;
  Tensor input;
  {
    const Tensor copies = repeated(graph, hidden, sizes.experts);
    input = eager::multiply(graph, copies, eager::laid_out(graph, scores));
  }
  Tensor state = batched_product(graph, input, experts.gate_up.data, rows * 2 * sizes.ffn);
  state = activated_rows(graph, state, sizes);
  return batched_product(graph, state, experts.down.data, rows * sizes.hidden);
}

Tensor with_sum_of_experts(Graph& graph, const Tensor& sum, const Tensor& outputs) {
  const Tensor summed =
      eager::sum(graph, eager::copied_back(graph, outputs), outputs.elements / sum.elements);
  NodeBuilder node(graph, {&sum, &summed});
  Tensor output = sum;
  return node.finish(std::move(output), [](BackwardCall& call) {
    return Tensors{call.gradients[0], std::move(call.gradients[0])};
  });
}

}  // namespace shardplan::huggingface
