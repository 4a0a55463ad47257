#include "estimator/frameworks/pieces/huggingface/fused_adapters.h"

#include <algorithm>
#include <utility>

#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;
using Layers = std::vector<const Linear*>;

// Places among what is saved and among the inputs: the input and the same with dropout, then A and
// B of each layer.
constexpr std::size_t kFirstMatrix = 2;

Tensor cast_matrix(Graph& graph, const eager::Parameter& matrix, DType dtype) {
  const InRow row(graph.tape, kAdapterActivationRow);
  return matrix.data.dtype == dtype ? matrix.data.detached()
                                    : graph.make(matrix.data.elements, dtype);
}

// The base's product, to which the adapter's is added in place.
Tensor output_of(Graph& graph, const Linear& layer, std::int64_t rows, DType dtype) {
  Tensor output;
  {
    const Tensor weight = unpacked_weight(graph, layer, dtype);
    output = graph.make_product(rows * layer.shape.outputs, dtype);
  }
  const Tensor a = cast_matrix(graph, layer.a, dtype);
  const Tensor b = cast_matrix(graph, layer.b, dtype);
  const Tensor inner = graph.make_product(rows * layer.rank, dtype);
  return output;
}

std::vector<const Tensor*> inputs_of(const Layers& layers, const Tensor& input,
                                     const Tensor& dropped) {
  std::vector<const Tensor*> inputs = {&input, &dropped};
  for (const Linear* layer : layers) {
    inputs.push_back(&layer->a.data);
    inputs.push_back(&layer->b.data);
  }
  return inputs;
}

// Undefined: no dropout.
Tensor dropped_input(Graph& graph, const Linear& layer, const Tensor& input) {
  return layer.dropout > 0 ? eager::dropout(graph, input, layer.dropout) : Tensor{};
}

void save_matrices(Graph& graph, NodeBuilder& node, const Layers& layers, const Tensor& input,
                   const Tensor& dropped) {
  node.save(input);
  node.save(dropped.is_defined() ? dropped : input);
  for (const Linear* layer : layers) {
    node.save(cast_matrix(graph, layer->a, input.dtype));
    node.save(cast_matrix(graph, layer->b, input.dtype));
  }
}

// Gradients of A and B of one layer; what an input's gradient takes of them stays in `inner`.
void add_gradients(Graph& graph, const Linear& layer, std::int64_t rows, DType dtype,
                   Tensors& gradients, Tensors& inner) {
  inner.push_back(graph.make_product(rows * layer.rank, dtype));
  gradients.push_back(graph.make(layer.rank * layer.shape.inputs, dtype));
  gradients.push_back(graph.make(layer.rank * layer.shape.outputs, dtype));
  const Tensor outer = graph.make_product(rows * layer.rank, dtype);
}

// Of the input, to which each layer adds in place.
Tensor input_gradient(Graph& graph, const Layers& layers, std::int64_t elements, DType dtype) {
  Tensor gradient;
  for (const Linear* layer : layers) {
    const Tensor weight = unpacked_weight(graph, *layer, dtype);
    if (!gradient.is_defined()) {
      gradient = graph.make_product(elements, dtype);
    }
  }
  return gradient;
}

}  // namespace

bool have_adapters(const std::vector<const Linear*>& layers) {
  return std::ranges::all_of(layers, [](const Linear* layer) { return layer->rank > 0; });
}

Tensors fused_projections(Graph& graph, const Layers& layers, const Tensor& input) {
  const Tensor dropped = dropped_input(graph, *layers.front(), input);
  NodeBuilder node(graph, inputs_of(layers, input, dropped));
  const std::int64_t rows = input.elements / layers.front()->shape.inputs;
  const DType dtype = input.dtype;
  Tensors outputs;
  for (const Linear* layer : layers) { outputs.push_back(output_of(graph, *layer, rows, dtype)); }
  if (node.is_needed()) {
    save_matrices(graph, node, layers, input, dropped);
  }
  const std::int64_t elements = input.elements;
  const bool drops = dropped.is_defined();
  return node.finish(std::move(outputs), [=](BackwardCall& call) {
    Tensors saved;
    for (std::size_t i = 0; i < kFirstMatrix + 2 * layers.size(); ++i) {
      saved.push_back(call.saved(i));
    }
    Tensors gradients(kFirstMatrix);
    Tensors inner;
    for (const Linear* layer : layers) {
      add_gradients(call.graph, *layer, rows, dtype, gradients, inner);
    }
    gradients[0] = input_gradient(call.graph, layers, elements, dtype);
    gradients[1] = call.graph.make(drops ? elements : 0, dtype);
    return gradients;
  });
}

// The backward pass writes the activation's product over its gradient, and gradients of gate and up
// over these (kernels/swiglu.py swiglu_backward).
Tensor fused_feed_forward(Graph& graph, const FeedForward& ffn, const Tensor& input) {
  const Layers layers = {&ffn.gate, &ffn.up, &ffn.down};
  const Tensor dropped = dropped_input(graph, ffn.gate, input);
  NodeBuilder node(graph, inputs_of(layers, input, dropped));
  const std::int64_t rows = input.elements / ffn.gate.shape.inputs;
  const DType dtype = input.dtype;
  const Tensor gate = output_of(graph, ffn.gate, rows, dtype);
  const Tensor up = output_of(graph, ffn.up, rows, dtype);
  Tensor output;
  {
    const Tensor product = graph.make(gate.elements, dtype);
    output = output_of(graph, ffn.down, rows, dtype);
  }
  if (node.is_needed()) {
    save_matrices(graph, node, layers, input, dropped);
    node.save(gate);
    node.save(up);
  }
  const std::int64_t elements = input.elements;
  const bool drops = dropped.is_defined();
  const FeedForward* const of = &ffn;
  return node.finish(std::move(output), [=](BackwardCall& call) {
    Graph& g = call.graph;
    Tensors saved;
    for (std::size_t i = 0; i < kFirstMatrix + 2 * layers.size() + 2; ++i) {
      saved.push_back(call.saved(i));
    }
    Tensor of_product;
    {
      const Tensor weight = unpacked_weight(g, of->down, dtype);
      of_product = g.make_product(rows * of->down.shape.inputs, dtype);
    }
    Tensors gradients(kFirstMatrix);
    Tensors inner;
    for (const Linear* layer : layers) { add_gradients(g, *layer, rows, dtype, gradients, inner); }
    gradients[0] = input_gradient(g, {&of->up, &of->gate}, elements, dtype);
    gradients[1] = g.make(drops ? elements : 0, dtype);
    return gradients;
  });
}

}  // namespace shardplan::huggingface
