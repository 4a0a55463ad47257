#include "estimator/frameworks/pieces/huggingface/experts.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/huggingface/feed_forward.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// In place or into a tensor of its own; its gradient is a copy.
Tensor masked_fill(Graph& graph, const Tensor& input, bool in_place) {
  NodeBuilder node(graph, {&input});
  Tensor output = in_place ? input : graph.make(input.elements, input.dtype);
  return node.finish(std::move(output), [](BackwardCall& call) {
    const Tensor& gradient = call.gradients[0];
    return Tensors{call.graph.make(gradient.elements, gradient.dtype)};
  });
}

// In the type of its arguments, which autocast leaves. Derivatives of the weights, then of the
// rows.
Tensor grouped_product(Graph& graph, const Tensor& rows, const Tensor& weights,
                       std::int64_t outputs) {
  NodeBuilder node(graph, {&rows, &weights});
  if (node.is_needed()) {
    if (rows.requires_grad()) {
      node.save(weights);
    }
    if (weights.requires_grad()) {
      node.save(rows);
    }
  }
  const std::int64_t of_x = rows.elements;
  const std::int64_t of_w = weights.elements;
  const DType dtype = rows.dtype;
  return node.finish(graph.make(outputs, dtype), [=](BackwardCall& call) {
    Tensors saved;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
      }
    }
    Tensors gradients(2);
    if (call.wants(1)) {
      const InRow row(call.graph.tape, eager::kWeightGradientsRow);
      gradients[1] = call.graph.make(of_w, dtype);
    }
    if (call.wants(0)) {
      gradients[0] = call.graph.make(of_x, dtype);
    }
    return gradients;
  });
}

// Both factors of an adapter in the weight's type.
struct Factors {
  Tensor left, right;
};

Factors factors_of(Graph& graph, const eager::Parameter& a, const eager::Parameter& b,
                   DType dtype) {
  if (!a.data.is_defined()) {
    return {};
  }
  return {.left = eager::to(graph, b.data, dtype), .right = eager::to(graph, a.data, dtype)};
}

// peft's ParamWrapper: the weight and the factors' product, whole (peft 0.21 tuners/lora/layer.py
// _LoraFactorsProxy, baddbmm).
Tensor adapted(Graph& graph, const Tensor& weight, const Factors& factors) {
  if (!factors.left.is_defined()) {
    return weight;
  }
  NodeBuilder node(graph, {&factors.left, &factors.right});
  if (node.is_needed()) {
    node.save(factors.left);
    node.save(factors.right);
  }
  const std::int64_t of_left = factors.left.elements;
  const std::int64_t of_right = factors.right.elements;
  const DType dtype = weight.dtype;
  return node.finish(graph.make(weight.elements, dtype), [=](BackwardCall& call) {
    const auto scaled_product = [&](std::int64_t elements) {
      const Tensor product = call.graph.make_product(elements, dtype);
      return call.graph.make(elements, dtype);
    };
    Tensor left_gradient = scaled_product(of_left);
    return Tensors{std::move(left_gradient), scaled_product(of_right)};
  });
}

// Sums over the experts of a token, in fp32 under autocast.
Tensor sum_of_chosen(Graph& graph, const Tensor& rows, std::int64_t elements) {
  NodeBuilder node(graph, {&rows});
  const DType dtype = graph.autocast ? DType::kFp32 : rows.dtype;
  const std::int64_t all = rows.elements;
  const DType of_rows = rows.dtype;
  return node.finish(graph.make(elements, dtype),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(all, of_rows)}; });
}

// Weights of the chosen experts, one for each row. Groups of experts are chosen by tensors without
// gradients, of the size of scores, which are small beside the rows.
Tensor route(Graph& graph, const Experts& experts, const Tensor& hidden, const ExpertSizes& sizes) {
  const bool is_wide = sizes.router != RouterKind::kSoftmax;
  const auto router_type = [&](const Tensor& tensor) {
    return is_wide ? eager::to(graph, tensor, DType::kFp32) : tensor;
  };
  const Tensor logits =
      eager::linear(graph, router_type(hidden), router_type(experts.router.data),
                    {.inputs = sizes.hidden, .outputs = sizes.experts, .flattens_input = false});
  if (sizes.router == RouterKind::kWideSigmoid) {
    const Tensor scores = eager::sigmoid(graph, logits);
    const Tensor top = eager::index(graph, scores, sizes.tokens * sizes.chosen);
    return eager::scale(graph, top);
  }
  const Tensor scores = eager::log_softmax(graph, eager::to(graph, logits, DType::kFp32));
  const Tensor top = eager::index(graph, scores, sizes.tokens * sizes.chosen);
  return is_wide ? eager::scale(graph, top) : eager::to(graph, top, logits.dtype);
}

// A view of one expert's matrix; its gradient lies in zeros of all.
Tensor one_of(Graph& graph, const Tensor& weights, std::int64_t experts) {
  NodeBuilder node(graph, {&weights});
  const std::int64_t all = weights.elements;
  const DType dtype = weights.dtype;
  return node.finish(weights.viewed(all / experts), [=](BackwardCall& call) {
    const InRow row(call.graph.tape, eager::kWeightGradientsRow);
    return Tensors{call.graph.make(all, dtype)};
  });
}

// index_add_: in place; rows get their part of the gradient, which asks for their shape.
Tensor added_to(Graph& graph, const Tensor& sum, const Tensor& rows) {
  NodeBuilder node(graph, {&sum, &rows});
  if (node.is_needed()) {
    node.save(rows);
  }
  const std::int64_t elements = rows.elements;
  const DType dtype = rows.dtype;
  Tensor output = sum;
  return node.finish(std::move(output), [=](BackwardCall& call) {
    const Tensor saved_rows = call.saved(0);
    Tensor of_rows = call.graph.make(elements, dtype);
    return Tensors{std::move(call.gradients[0]), std::move(of_rows)};
  });
}

// Qwen3MoeExperts.forward: each expert on the tokens that chose it, on average as many.
Tensor eager_experts(Graph& graph, const Experts& experts, const Tensor& hidden,
                     const Tensor& weights, const ExpertSizes& sizes) {
  const std::int64_t rows = sizes.tokens * sizes.chosen;
  Tensor sum = graph.make(sizes.tokens * sizes.hidden, hidden.dtype);
  Tensor state, output;
  for (std::int64_t i = 0; i < sizes.experts; ++i) {
    const std::int64_t own = (i + 1) * rows / sizes.experts - i * rows / sizes.experts;
    state = eager::index(graph, hidden, own * sizes.hidden);
    Tensor product =
        eager::linear(graph, state, one_of(graph, experts.gate_up.data, sizes.experts),
                      {.inputs = sizes.hidden, .outputs = 2 * sizes.ffn, .flattens_input = false});
    product = gated_halves(graph, product);
    output = eager::linear(graph, product, one_of(graph, experts.down.data, sizes.experts),
                           {.inputs = sizes.ffn, .outputs = sizes.hidden, .flattens_input = false});
    output = eager::multiply(graph, output, eager::index(graph, weights, own));
    sum = added_to(graph, sum, eager::to(graph, output, hidden.dtype));
  }
  return sum;
}

}  // namespace

Tensor experts_forward(Graph& graph, const Experts& experts, const Tensor& hidden,
                       const ExpertSizes& sizes) {
  const std::int64_t rows = sizes.tokens * sizes.chosen;
  const Tensor weights = route(graph, experts, hidden, sizes);
  if (sizes.is_eager) {
    return eager_experts(graph, experts, hidden, weights, sizes);
  }
  // A weight is made once when its adapter is put in its place, and again when it is read.
  const DType dtype = experts.down.data.dtype;
  const Factors of_down = factors_of(graph, experts.down_a, experts.down_b, dtype);
  adapted(graph, experts.down.data, of_down);
  const Factors of_gate_up = factors_of(graph, experts.gate_up_a, experts.gate_up_b, dtype);
  adapted(graph, experts.gate_up.data, of_gate_up);
  Tensor selected = eager::index(graph, hidden, rows * sizes.hidden);
  selected = masked_fill(graph, selected, true);
  Tensor output = grouped_product(graph, selected, adapted(graph, experts.gate_up.data, of_gate_up),
                                  rows * 2 * sizes.ffn);
  output = masked_fill(graph, output, false);
  output = gated_halves(graph, output);
  output = grouped_product(graph, output, adapted(graph, experts.down.data, of_down),
                           rows * sizes.hidden);
  output = masked_fill(graph, output, false);
  Tensor weighted = eager::multiply(graph, output, weights);
  weighted = eager::index(graph, weighted, rows * sizes.hidden);
  const Tensor sum = sum_of_chosen(graph, weighted, sizes.tokens * sizes.hidden);
  return eager::to(graph, sum, hidden.dtype);
}

}  // namespace shardplan::huggingface
