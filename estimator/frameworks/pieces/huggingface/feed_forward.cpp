#include "estimator/frameworks/pieces/huggingface/feed_forward.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/liger.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

// Liger's kernel takes no views: copies of both halves, over which their gradients are written.
Tensor liger_halves(Graph& graph, const Tensor& rows) {
  NodeBuilder node(graph, {&rows});
  const std::int64_t elements = rows.elements / 2;
  const DType dtype = rows.dtype;
  const Tensor gate = graph.make(elements, dtype);
  const Tensor up = graph.make(elements, dtype);
  if (node.is_needed()) {
    node.save(gate);
    node.save(up);
  }
  return node.finish(graph.make(elements, dtype), [=](BackwardCall& call) {
    const Tensor of_gate = call.saved(0);
    const Tensor of_up = call.saved(1);
    return Tensors{call.graph.make(2 * elements, dtype)};
  });
}

Tensor activated(Graph& graph, FeedForward& layer, const Tensor& input, bool uses_liger) {
  if (!layer.is_gated()) {
    const Tensor up = project(graph, layer.up, input);
    return eager::call_module(graph, {&layer.up, "act_fn", {}}, up, [&](const Tensor& x) {
      return layer.activation == Activation::kXielu ? xielu(graph, layer.xielu, x)
                                                    : activate(graph, layer.activation, x);
    });
  }
  if (layer.scales_parts) {  // FalconH1MLP, which makes up first
    const Tensor up = project(graph, layer.up, input);
    const Tensor gate = eager::silu(graph, eager::scale(graph, project(graph, layer.gate, input)));
    return eager::multiply(graph, up, gate);
  }
  if (layer.gate_up.shape.inputs > 0) {
    const Tensor rows = project(graph, layer.gate_up, input);
    return uses_liger ? liger_halves(graph, rows) : gated_halves(graph, rows);
  }
  Tensor gate = project(graph, layer.gate, input);
  if (!uses_liger) {
    gate = eager::call_module(graph, {&layer.gate, "act_fn", {}}, gate,
                              [&](const Tensor& x) { return eager::silu(graph, x); });
  }
  const Tensor up = project(graph, layer.up, input);
  return uses_liger ? eager::liger_swiglu(graph, gate, up) : eager::multiply(graph, gate, up);
}

}  // namespace

Tensor gated_halves(Graph& graph, const Tensor& rows) {
  NodeBuilder node(graph, {&rows});
  const std::int64_t elements = rows.elements / 2;
  const DType dtype = rows.dtype;
  Tensor activation = graph.make(elements, dtype);
  Tensor product = graph.make(elements, dtype);
  if (node.is_needed()) {
    node.save(activation);
    node.save(rows);
  }
  return node.finish(std::move(product), [=](BackwardCall& call) {
    Tensor saved_rows = call.saved(1);
    Graph& g = call.graph;
    const Tensor of_up = g.make(elements, dtype);
    Tensor of_gate;
    {
      const Tensor saved_activation = call.saved(0);
      const Tensor of_activation = g.make(elements, dtype);
      call.gradients[0] = {};
      of_gate = g.make(elements, dtype);
    }
    return Tensors{g.make(2 * elements, dtype)};
  });
}

namespace {

Tensor plain_feed_forward(Graph& graph, FeedForward& layer, const Tensor& input, bool uses_liger) {
  const Tensor product = activated(graph, layer, input, uses_liger);
  const Tensor output = project(graph, layer.down, product);
  return layer.scales_parts ? eager::scale(graph, output) : output;
}

// ms-swift 3602360 swift/tuners/adapter.py AdapterModule.forward: what the FFN gives in the type of
// the weights, by way of gelu, is added to itself in the type of products.
Tensor behind_bottleneck(Graph& graph, const FeedForward& layer, const Tensor& output) {
  const InRow row(graph.tape, kAdapterActivationRow);
  const Tensor x = eager::to(graph, output, layer.narrowing.weight.data.dtype);
  Tensor inner = eager::linear(graph, x, layer.narrowing.weight.data, layer.narrowing.shape,
                               layer.narrowing.bias.data);
  inner = activate(graph, Activation::kGelu, inner);
  const Tensor wide = eager::linear(graph, inner, layer.widening.weight.data, layer.widening.shape,
                                    layer.widening.bias.data);
  inner = {};
  const Tensor identity = eager::to(graph, x, wide.dtype);
  return eager::to(graph, eager::add(graph, identity, wide), output.dtype);
}

}  // namespace

Tensor feed_forward(Graph& graph, FeedForward& layer, const Tensor& input, bool uses_liger) {
  const Tensor output = plain_feed_forward(graph, layer, input, uses_liger);
  return layer.narrowing.weight.data.is_defined() ? behind_bottleneck(graph, layer, output)
                                                  : output;
}

}  // namespace shardplan::huggingface
