#include "estimator/frameworks/pieces/eager/fake_quantize.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/plan/units.h"

namespace shardplan::eager {
namespace {

// _Round: the gradient goes through.
Tensor rounded(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  return node.finish(graph.make(input.elements, input.dtype),
                     [](BackwardCall& call) { return std::move(call.gradients); });
}

// Saves its input, to pass the gradient of what lies within the bounds.
Tensor clamped(Graph& graph, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  if (node.is_needed()) {
    node.save(input);
  }
  return node.finish(graph.make(input.elements, input.dtype), [](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    return Tensors{call.graph.make(saved.elements, saved.dtype)};
  });
}

// amax or amin of groups: the gradient goes in equal parts to the elements that are as large.
Tensor extreme_of_groups(Graph& graph, const Tensor& input, std::int64_t groups) {
  NodeBuilder node(graph, {&input});
  const Tensor result = graph.make(groups, input.dtype);
  if (node.is_needed()) {
    node.save(input);
    node.save(result);
  }
  return node.finish(result, [](BackwardCall& call) {
    const Tensor saved = call.saved(0);
    const Tensor mask = call.graph.make(saved.elements, DType::kBool);
    const Tensor masked = call.graph.make(saved.elements, saved.dtype);
    return Tensors{call.graph.make(saved.elements, saved.dtype)};
  });
}

// By the scale of each group: the gradient of the scale is -g * ((input / scale) / scale), summed
// over a group.
Tensor divided_by_groups(Graph& graph, const Tensor& input, const Tensor& scale) {
  NodeBuilder node(graph, {&input, &scale});
  if (node.is_needed()) {
    node.save(scale);
    node.save(input);
  }
  return node.finish(graph.make(input.elements, input.dtype), [](BackwardCall& call) {
    const Tensor saved_scale = call.saved(0);
    const Tensor saved = call.saved(1);
    const auto make = [&] { return call.graph.make(saved.elements, saved.dtype); };
    Tensor of_scale;
    {
      const Tensor negated = make();
      Tensor twice;
      {
        const Tensor once = make();
        twice = make();
      }
      of_scale = make();
    }
    return Tensors{make(), std::move(of_scale)};
  });
}

}  // namespace

Tensor fake_quantized_rows(Graph& graph, const Tensor& input, std::int64_t width, Tensors& held) {
  const std::int64_t rows = input.elements / width;
  held = {graph.make(rows, DType::kFp32), graph.make(rows, DType::kInt32)};
  Tensor values;
  {
    const Tensor inverse = graph.make(rows, DType::kFp32);
    values = rounded(graph, multiply(graph, input, inverse));
  }
  values = clamped(graph, shift(graph, values));
  const Tensor quantized = values;  // until it has been taken back
  values = shift(graph, to(graph, values, input.dtype));
  values = multiply(graph, values, held.front());
  return to(graph, values, input.dtype);
}

Tensor fake_quantized_groups(Graph& graph, const Tensor& weight, std::int64_t group) {
  const std::int64_t groups = div_ceil(weight.elements, group);
  const Tensor wide = to(graph, weight, DType::kFp32);
  const Tensor largest = extreme_of_groups(graph, wide, groups);
  const Tensor least = extreme_of_groups(graph, wide, groups);
  const Tensor scales = scale(graph, clamped(graph, subtract(graph, largest, least)));
  const Tensor zero_points = add(graph, least, scale(graph, scales));
  Tensor values = rounded(graph, divided_by_groups(graph, subtract(graph, wide, least), scales));
  values = clamped(graph, values);
  values = shift(graph, values);
  values = add(graph, multiply(graph, values, scales), zero_points);
  return to(graph, values, weight.dtype);
}

}  // namespace shardplan::eager
