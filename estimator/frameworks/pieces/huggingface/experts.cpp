#include "estimator/frameworks/pieces/huggingface/experts.h"

#include <optional>
#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/huggingface/feed_forward.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"

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

// In the type of the weights, to which rows are cast, and which autocast leaves. Derivatives of the
// weights, then of the rows.
Tensor grouped_product(Graph& graph, const Tensor& given, const Tensor& weights,
                       std::int64_t outputs) {
  const Tensor rows = eager::to(graph, given, weights.dtype);
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
// _LoraFactorsProxy, baddbmm). A weight is made once when its adapter is put in its place, and
// again when it is read.
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

Tensor router_product(Graph& graph, const Tensor& input, const Tensor& weight,
                      const ExpertSizes& sizes, const Tensor& bias = {}) {
  return eager::linear(graph, input, weight,
                       {.inputs = sizes.hidden, .outputs = sizes.experts, .flattens_input = false},
                       bias);
}

Tensor wide_softmax(Graph& graph, const Tensor& scores) {
  return eager::log_softmax(graph, eager::to(graph, scores, DType::kFp32));
}

// Ernie4_5_MoeTopKRouter: the sum of the chosen is kept from zero, and divides them.
Tensor route_beside_autocast(Graph& graph, const Tensor& router, const Tensor& hidden,
                             const ExpertSizes& sizes) {
  const auto autocast = std::exchange(graph.autocast, std::nullopt);
  const Tensor input = eager::to(graph, hidden, DType::kFp32);
  const Tensor weight = eager::to(graph, router, DType::kFp32);
  const Tensor scores = wide_softmax(graph, router_product(graph, input, weight, sizes));
  const Tensor top = eager::index(graph, scores, sizes.tokens * sizes.chosen);
  const Tensor weights = eager::scale(graph, top);
  graph.autocast = autocast;
  return eager::to(graph, weights, hidden.dtype);
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

// Added in place, row by row.
Tensor with_bias(Graph& graph, const Tensor& rows, const Tensor& biases) {
  if (!biases.is_defined()) {
    return rows;
  }
  NodeBuilder node(graph, {&rows, &biases});
  Tensor output = rows;
  return node.finish(std::move(output), [](BackwardCall& call) {
    return Tensors{call.gradients[0], std::move(call.gradients[0])};
  });
}

// One of two interleaved halves of every row, bounded: its gradient by way of a mask of bytes, then
// in zeros of whole rows (GptOssExperts._apply_gate).
Tensor clamped(Graph& graph, const Tensor& half, bool from_below) {
  NodeBuilder node(graph, {&half});
  if (node.is_needed()) {
    node.save(half);
  }
  return node.finish(graph.make(half.elements, half.dtype), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    Tensor mask = call.graph.make(saved.elements, DType::kBool);
    if (from_below) {
      const Tensor other = call.graph.make(saved.elements, DType::kBool);
    }
    return Tensors{call.graph.make(saved.elements, saved.dtype)};
  });
}

// (up + 1) * gate * sigmoid(alpha * gate).
Tensor clamped_swiglu(Graph& graph, const Tensor& rows) {
  Tensor gate = eager::slice(graph, rows, rows.elements / 2);
  Tensor up = eager::slice(graph, rows, rows.elements / 2);
  gate = clamped(graph, gate, false);
  up = clamped(graph, up, true);
  Tensor activation;
  {
    const Tensor sigmoid = eager::sigmoid(graph, eager::scale(graph, gate));
    activation = eager::multiply(graph, gate, sigmoid);
  }
  return eager::multiply(graph, eager::shift(graph, up), activation);
}

// A quantized one is unpacked when the module first reads it, and stays until the module has run,
// or the backward pass has read it (bitsandbytes 0.50 nn/parametrize.py Bnb4bitParametrization).
Tensor whole(Graph& graph, const Experts& experts, const Tensor& weight) {
  if (experts.quantized.kind == Quantization::kNone) {
    return weight;
  }
  const InRow row(graph.tape, kDequantizedRow);
  // Values of 8 bits times the scales of their rows, then times a number.
  const Tensor product = experts.quantized.kind == Quantization::kInt8
                             ? graph.make(weight.elements, weight.dtype)
                             : Tensor{};
  return graph.make(weight.elements, weight.dtype);
}

}  // namespace

Tensor activated_rows(Graph& graph, const Tensor& rows, const ExpertSizes& sizes) {
  if (sizes.activation == Activation::kClampedSwiglu) {
    return clamped_swiglu(graph, rows);
  }
  return sizes.is_gated ? gated_halves(graph, rows) : activate(graph, sizes.activation, rows);
}

// Groups of experts are chosen by tensors without gradients, of the size of scores, which are small
// beside the rows.
Tensor weights_of_chosen(Graph& graph, const Experts& experts, const Tensor& hidden,
                         const ExpertSizes& sizes) {
  using enum RouterKind;
  const Factors factors =
      factors_of(graph, experts.router_a, experts.router_b, experts.router.data.dtype);
  adapted(graph, experts.router.data, factors);
  const Tensor router = adapted(graph, experts.router.data, factors);
  if (sizes.router == kSoftmaxBesideAutocast) {
    return route_beside_autocast(graph, router, hidden, sizes);
  }
  const bool is_wide = sizes.router == kWideSoftmax || sizes.router == kWideSigmoid;
  const auto router_type = [&](const Tensor& tensor) {
    return is_wide || sizes.router == kWideInput ? eager::to(graph, tensor, DType::kFp32) : tensor;
  };
  const Tensor logits = router_product(graph, router_type(hidden), router_type(router), sizes,
                                       experts.router_bias.data);
  const std::int64_t rows = sizes.tokens * sizes.chosen;
  switch (sizes.router) {
    case kWideSigmoid:
    case kNarrowSigmoid:
    case kSigmoid: {
      const Tensor wide =
          sizes.router == kSigmoid ? eager::to(graph, logits, DType::kFp32) : logits;
      return eager::scale(graph, eager::index(graph, eager::sigmoid(graph, wide), rows));
    }
    case kSoftmaxOfChosen: {
      const Tensor top = eager::index(graph, eager::to(graph, logits, DType::kFp32), rows);
      return eager::to(graph, eager::log_softmax(graph, top), hidden.dtype);
    }
    case kNarrowSoftmax: {
      const Tensor scores = eager::log_softmax(
          graph, graph.autocast ? eager::to(graph, logits, DType::kFp32) : logits);
      return eager::scale(graph, eager::index(graph, scores, rows));
    }
    case kNarrowSoftmaxOfChosen:
      return eager::log_softmax(graph, eager::index(graph, logits, rows));
    default: break;
  }
  const Tensor top = eager::index(graph, wide_softmax(graph, logits), rows);
  if (sizes.router == kSoftmaxByExpert) {
    return eager::multiply(graph, top, eager::index(graph, experts.expert_scale.data, rows));
  }
  return is_wide ? eager::scale(graph, top) : eager::to(graph, top, logits.dtype);
}

Tensor experts_forward(Graph& graph, const Experts& experts, const Tensor& hidden,
                       const Tensor& weights, const ExpertSizes& sizes) {
  const std::int64_t rows = sizes.tokens * sizes.chosen;
  if (sizes.is_eager) {
    return eager_experts(graph, experts, hidden, weights, sizes);
  }
  const DType dtype = experts.down.data.dtype;
  const Factors of_down = factors_of(graph, experts.down_a, experts.down_b, dtype);
  adapted(graph, experts.down.data, of_down);
  const Factors of_gate_up = factors_of(graph, experts.gate_up_a, experts.gate_up_b, dtype);
  adapted(graph, experts.gate_up.data, of_gate_up);
  const auto bias_rows = [&](const eager::Parameter& bias, std::int64_t width) {
    return bias.data.is_defined() ? eager::index(graph, bias.data, rows * width) : Tensor{};
  };
  const std::int64_t wide = (sizes.is_gated ? 2 : 1) * sizes.ffn;
  const Tensor gate_up = whole(graph, experts, experts.gate_up.data);
  Tensor selected = eager::index(graph, hidden, rows * sizes.hidden);
  Tensor biases = bias_rows(experts.gate_up_bias, wide);
  selected = masked_fill(graph, selected, true);
  Tensor output =
      grouped_product(graph, selected, adapted(graph, gate_up, of_gate_up), rows * wide);
  output = masked_fill(graph, with_bias(graph, output, biases), false);
  output = activated_rows(graph, output, sizes);
  biases = bias_rows(experts.down_bias, sizes.hidden);
  const Tensor down = whole(graph, experts, experts.down.data);
  output = grouped_product(graph, output, adapted(graph, down, of_down), rows * sizes.hidden);
  output = masked_fill(graph, with_bias(graph, output, biases), false);
  Tensor weighted = eager::multiply(graph, output, weights);
  weighted = eager::index(graph, weighted, rows * sizes.hidden);
  const Tensor sum = sum_of_chosen(graph, weighted, sizes.tokens * sizes.hidden);
  return eager::to(graph, sum, hidden.dtype);
}

}  // namespace shardplan::huggingface
