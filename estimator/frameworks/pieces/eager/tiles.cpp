#include "estimator/frameworks/pieces/eager/tiles.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/plan/units.h"

namespace shardplan::eager {
namespace {

// Of every tile, as torch.chunk cuts the input.
template <typename Function>
void for_each_tile(std::int64_t elements, std::int64_t rows, std::int64_t tiles,
                   Function function) {
  const std::int64_t of_tile = div_ceil(rows, tiles) * (elements / rows);
  for (std::int64_t first = 0; first < elements; first += of_tile) {
    function(std::min(of_tile, elements - first));
  }
}

// A parameter's gradients are added into a tensor of zeros, tile by tile, while it lives. Autocast
// has ended by then, as in every backward pass of Python's functions.
class Sums {
 public:
  Sums(Graph& graph, const std::vector<Parameter*>& parameters) {
    const InRow row(graph.tape, kWeightGradientsRow);
    for (Parameter* parameter : parameters) {
      if (parameter->data.requires_grad()) {
        nodes_.push_back(parameter->data.node);
        sums_.push_back(graph.make(parameter->data.elements, parameter->data.dtype));
        takes_.push_back(std::exchange(parameter->data.node->take, [this](Tensor gradient) {
          of_tile_.push_back(std::move(gradient));
        }));
      }
    }
  }
  // Those of a tile stay until its backward pass has ended.
  void add() { of_tile_.clear(); }
  // They go where gradients went.
  void hand_on() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i]->take = std::move(takes_[i]);
      nodes_[i]->take(std::move(sums_[i]));
    }
  }

 private:
  std::vector<std::shared_ptr<Node>> nodes_;
  Tensors sums_;
  Tensors of_tile_;
  std::vector<std::function<void(Tensor)>> takes_;
};

// A tile forward and backward; its gradient is added into the input's.
void play_tile(Graph& graph, const Tensor& tile, const CheckpointedFunction& function,
               const Tensor& gradient) {
  const Tensor leaf = graph.make_leaf(tile, [](Tensor) {});
  graph.records = true;
  const Tensor output = function(leaf);
  graph.records = false;
  graph.backward(output, gradient);
}

}  // namespace

Tensor tiled(Graph& graph, const Tensor& input, std::int64_t rows, std::int64_t tiles,
             const std::vector<Parameter*>& parameters, CheckpointedFunction function) {
  NodeBuilder node(graph, {&input});
  const std::int64_t elements = input.elements;
  if (node.is_needed()) {
    node.save(input);
  }
  Tensor output;
  {
    const NoGrad no_grad(graph);
    Tensors outputs;
    for_each_tile(elements, rows, tiles, [&](std::int64_t of_tile) {
      outputs.push_back(function(input.viewed(of_tile)));
    });
    output = graph.make(elements, outputs.front().dtype);
  }
  return node.finish(std::move(output), [=](BackwardCall& call) {
    Graph& g = call.graph;
    const Tensor saved = call.saved(0);
    Tensor of_input = g.make(elements, saved.dtype);
    Sums sums(g, parameters);
    for_each_tile(elements, rows, tiles, [&](std::int64_t of_tile) {
      play_tile(g, saved.viewed(of_tile), function, call.gradients[0].viewed(of_tile));
      sums.add();
    });
    sums.hand_on();
    return Tensors{std::move(of_input)};
  });
}

}  // namespace shardplan::eager
