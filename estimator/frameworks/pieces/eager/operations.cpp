#include "estimator/frameworks/pieces/eager/operations.h"

#include <algorithm>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/eager/python_linear.h"
#include "estimator/frameworks/pieces/table_gradient.h"

namespace shardplan::eager {

DType promoted(DType a, DType b) {
  return a == b ? a : DType::kFp32;
}

namespace {

std::int64_t broadcast(const Tensor& a, const Tensor& b) {
  return std::max(a.elements, b.elements);
}

Tensor product(Graph& graph, const Tensor& a, const Tensor& b, bool sums_columns) {
  NodeBuilder node(graph, {&a, &b});
  if (node.is_needed()) {
    if (sums_columns) {
      node.sum_columns();
    }
    if (a.requires_grad()) {
      node.save(b);
    }
    if (b.requires_grad()) {
      node.save(a);
    }
  }
  const DType dtype = promoted(a.dtype, b.dtype);
  const std::int64_t elements = broadcast(a, b);
  return node.finish(graph.make(elements, dtype), [=](BackwardCall& call) {
    Tensors saved;
    Tensors gradients(2);
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
      }
    }
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
      if (call.wants(i)) {
        gradients[i] = call.graph.make(elements, dtype);
      }
    }
    return gradients;
  });
}

// Operators whose derivative is of their output alone.
Tensor with_output_saved(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  const Tensor output = graph.make(input.elements, input.dtype);
  if (node.is_needed()) {
    node.save(output);
  }
  return node.finish(output, [](BackwardCall& call) {
    const Tensor result = call.saved(0);
    return Tensors{call.graph.make(result.elements, result.dtype)};
  });
}

}  // namespace

Tensor to(Graph& graph, const Tensor& input, DType dtype) {
  if (input.dtype == dtype) {
    return input;
  }
  NodeBuilder node(graph, {&input});
  // The engine casts the gradient back.
  return node.finish(graph.make(input.elements, dtype),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

Tensor in_autocast(Graph& graph, const Tensor& input) {
  return graph.autocast ? to(graph, input, *graph.autocast) : input;
}

Tensor add(Graph& graph, const Tensor& a, const Tensor& b) {
  NodeBuilder node(graph, {&a, &b});
  return node.finish(graph.make(broadcast(a, b), promoted(a.dtype, b.dtype)),
                     [](BackwardCall& call) {
                       return Tensors{call.gradients[0], std::move(call.gradients[0])};
                     });
}

Tensor subtract(Graph& graph, const Tensor& a, const Tensor& b) {
  NodeBuilder node(graph, {&a, &b});
  return node.finish(graph.make(broadcast(a, b), promoted(a.dtype, b.dtype)),
                     [](BackwardCall& call) {
                       Tensor& gradient = call.gradients[0];
                       Tensor negated = call.graph.make(gradient.elements, gradient.dtype);
                       return Tensors{std::move(gradient), std::move(negated)};
                     });
}

Tensor multiply(Graph& graph, const Tensor& a, const Tensor& b) {
  return product(graph, a, b, false);
}

Tensor multiply_rows(Graph& graph, const Tensor& weights, const Tensor& rows) {
  return product(graph, weights, rows, true);
}

Tensor multiply_by_row(Graph& graph, const Tensor& rows, const Tensor& weights) {
  return product(graph, rows, weights, true);
}

Tensor scale(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  return node.finish(graph.make(input.elements, input.dtype), [](BackwardCall& call) {
    const Tensor& gradient = call.gradients[0];
    return Tensors{call.graph.make(gradient.elements, gradient.dtype)};
  });
}

Tensor shift(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  return node.finish(graph.make(input.elements, input.dtype),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

// pow_backward: exponent * self.pow(exponent - 1), times the gradient.
Tensor power(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(input);
  }
  return node.finish(graph.make(input.elements, input.dtype), [](BackwardCall& call) {
    const Tensor self = call.saved(0);
    const Tensor power = call.graph.make(self.elements, self.dtype);
    const Tensor doubled = call.graph.make(self.elements, self.dtype);
    return Tensors{call.graph.make(self.elements, self.dtype)};
  });
}

Tensor square(Graph& graph, const Tensor& input) {
  return power(graph, input);
}

// -0.5 * grad * result.pow(3).
Tensor reciprocal_root(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  const Tensor output = graph.make(input.elements, input.dtype);
  if (node.is_needed()) {
    node.save(output);
  }
  return node.finish(output, [](BackwardCall& call) {
    const Tensor result = call.saved(0);
    const Tensor halved = call.graph.make(result.elements, result.dtype);
    const Tensor cube = call.graph.make(result.elements, result.dtype);
    return Tensors{call.graph.make(result.elements, result.dtype)};
  });
}

namespace {

// Operators whose derivative is of their input alone.
Tensor with_input_saved(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(input);
  }
  return node.finish(graph.make(input.elements, input.dtype), [](BackwardCall& call) {
    const Tensor self = call.saved(0);
    return Tensors{call.graph.make(self.elements, self.dtype)};
  });
}

}  // namespace

Tensor silu(Graph& graph, const Tensor& input) {
  return with_input_saved(graph, input);
}

Tensor softplus(Graph& graph, const Tensor& input) {
  return with_input_saved(graph, input);
}

Tensor relu(Graph& graph, const Tensor& input) {
  return with_output_saved(graph, input);
}

Tensor exponential(Graph& graph, const Tensor& input) {
  return with_output_saved(graph, input);
}

Tensor tanh(Graph& graph, const Tensor& input) {
  return with_output_saved(graph, input);
}

Tensor sigmoid(Graph& graph, const Tensor& input) {
  return with_output_saved(graph, input);
}

Tensor soft_capped(Graph& graph, Tensor input) {
  input = scale(graph, input);
  input = tanh(graph, input);
  return scale(graph, input);
}

Tensor sum(Graph& graph, const Tensor& input, std::int64_t width) {
  NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements;
  return node.finish(graph.make(elements / width, input.dtype), [=](BackwardCall& call) {
    Tensor gradient = call.gradients[0].viewed(elements);
    gradient.is_view = true;
    return Tensors{std::move(gradient)};
  });
}

Tensor mean(Graph& graph, const Tensor& input, std::int64_t width) {
  NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements;
  const DType dtype = input.dtype;
  return node.finish(graph.make(elements / width, dtype),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(elements, dtype)}; });
}

Tensor dropout(Graph& graph, const Tensor& input, double probability) {
  if (probability == 0) {
    return input;
  }
  NodeBuilder node(graph, {&input});
  const Tensor output = graph.make(input.elements, input.dtype);
  const Tensor mask = graph.make(input.elements, DType::kBool);
  if (node.is_needed()) {
    node.save(mask);
  }
  return node.finish(output, [](BackwardCall& call) {
    const Tensor kept = call.saved(0);
    const Tensor& gradient = call.gradients[0];
    return Tensors{call.graph.make(gradient.elements, gradient.dtype)};
  });
}

// mm of the flattened input, or addmm with a bias: derivatives of mat2 then self, or of mat1, mat2
// and self.
Tensor linear(Graph& graph, const Tensor& input, const Tensor& weight, const LinearShape& shape,
              const Tensor& bias) {
  if (graph.calls_python_linear && shape.is_function) {
    return python_linear(graph, input, weight, shape, bias);
  }
  // The last argument is cast first.
  const Tensor b = bias.is_defined() ? graph.cast_weight(bias) : Tensor{};
  const Tensor w = graph.cast_weight(weight);
  const Tensor x = in_autocast(graph, input);
  const bool has_bias = bias.is_defined();
  NodeBuilder node(graph, {&x, &w, &b});
  if (node.is_needed()) {
    if (x.requires_grad()) {
      Tensor transposed = w;
      transposed.is_strided = true;
      node.save(transposed);
    }
    if (w.requires_grad()) {
      node.save(x);
    }
  }
  const std::int64_t rows = x.elements / shape.inputs;
  const DType dtype = x.dtype;
  const auto of_weight = [=](BackwardCall& call) {
    const InRow row(call.graph.tape, kWeightGradientsRow);
    Tensor made = call.graph.make_product(shape.outputs * shape.inputs, dtype);
    made.is_view = true;  // of the weight that was transposed
    return made;
  };
  const auto of_input = [=](BackwardCall& call) {
    Tensor made = call.graph.make_product(rows * shape.inputs, dtype);
    made.is_view = shape.flattens_input;
    return made;
  };
  if (node.is_needed() && has_bias) {
    node.sum_columns();
  }
  Tensor output = has_bias ? graph.make_product_with_bias(rows * shape.outputs, dtype)
                           : graph.make_product(rows * shape.outputs, dtype);
  return node.finish(std::move(output), [=](BackwardCall& call) {
    Tensors saved;
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
      }
    }
    Tensors gradients(3);
    if (has_bias && call.wants(0)) {
      gradients[0] = of_input(call);
    }
    if (call.wants(1)) {
      gradients[1] = of_weight(call);
    }
    if (!has_bias && call.wants(0)) {
      gradients[0] = of_input(call);
    }
    if (call.wants(2)) {
      gradients[2] = call.gradients[0];
    }
    return gradients;
  });
}

Tensor embedding(Graph& graph, const Tensor& indices, const Tensor& table,
                 const TableShape& shape) {
  NodeBuilder node(graph, {&table});
  if (node.is_needed()) {
    node.save(indices);
  }
  const std::int64_t tokens = indices.elements;
  const DType dtype = table.dtype;
  return node.finish(graph.make(tokens * shape.width, dtype), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    const InRow row(call.graph.tape, kWeightGradientsRow);
    Tensor of_table = call.graph.make(shape.rows * shape.width, dtype);
    const InRow workspace_row(call.graph.tape, kTableWorkspaceRow);
    const Tensor workspace =
        call.graph.make(table_workspace_bytes(tokens, shape.rows, shape.width), DType::kBool);
    return Tensors{std::move(of_table)};
  });
}

Tensor log_softmax(Graph& graph, const Tensor& logits) {
  return with_output_saved(graph, logits);
}

namespace {

// A number for each token or of all of them; the gradient of the log-softmax is of its size.
Tensor losses_of(Graph& graph, const Tensor& log_softmax, const Tensor& labels,
                 std::int64_t losses) {
  NodeBuilder node(graph, {&log_softmax});
  if (node.is_needed()) {
    node.save(log_softmax);
    node.save(labels);
  }
  const std::int64_t elements = log_softmax.elements;
  const DType dtype = log_softmax.dtype;
  return node.finish(graph.make(losses, dtype), [=](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    const Tensor saved_labels = call.saved(1);
    return Tensors{call.graph.make(elements, dtype)};
  });
}

}  // namespace

Tensor nll_loss(Graph& graph, const Tensor& log_softmax, const Tensor& labels) {
  return losses_of(graph, log_softmax, labels, 1);
}

Tensor nll_losses(Graph& graph, const Tensor& log_softmax, const Tensor& labels) {
  return losses_of(graph, log_softmax, labels, labels.elements);
}

Tensor cross_entropy(Graph& graph, const Tensor& logits, const Tensor& labels) {
  return nll_loss(graph, log_softmax(graph, logits), labels);
}

Tensor gather(Graph& graph, const Tensor& input, const Tensor& places, std::int64_t width) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(input);
    node.save(places);
  }
  const std::int64_t elements = input.elements;
  const DType dtype = input.dtype;
  return node.finish(graph.make(elements / width, dtype),
                     [=](BackwardCall& call) { return Tensors{call.graph.make(elements, dtype)}; });
}

// logsumexp_backward: grad * (self - result).exp().
Tensor log_sum_exp(Graph& graph, const Tensor& input, std::int64_t width) {
  NodeBuilder node(graph, {&input});
  const Tensor output = graph.make(input.elements / width, input.dtype);
  { const Tensor exponentials = graph.make(input.elements, input.dtype); }
  if (node.is_needed()) {
    node.save(input);
    node.save(output);
  }
  return node.finish(output, [](BackwardCall& call) {
    const Tensor self = call.saved(0);
    const Tensor below = call.graph.make(self.elements, self.dtype);
    const Tensor exponentials = call.graph.make(self.elements, self.dtype);
    return Tensors{call.graph.make(self.elements, self.dtype)};
  });
}

}  // namespace shardplan::eager
