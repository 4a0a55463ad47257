#include "estimator/frameworks/pieces/eager/autograd.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <stdexcept>

#include "estimator/frameworks/pieces/eager/labels.h"
#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/eager/reduction.h"

namespace shardplan::eager {
Tensor BackwardCall::saved(std::size_t index) const {
  const SavedTensor& found = node_.saved.at(index);
  return found.hooks != nullptr ? found.hooks->unpack(found.packed) : found.tensor;
}

bool BackwardCall::wants(std::size_t input) const {
  return node_.inputs.at(input).node != nullptr;
}

NodeBuilder::NodeBuilder(Graph& graph, std::span<const Tensor* const> inputs) : graph_(graph) {
  bool is_needed = false;
  for (const Tensor* input : inputs) { is_needed = is_needed || input->requires_grad(); }
  if (!graph.records || !is_needed) {
    return;
  }
  node_ = std::make_shared<Node>();
  node_->inputs.reserve(inputs.size());
  for (const Tensor* input : inputs) { node_->inputs.push_back({input->node, input->output}); }
}

std::size_t NodeBuilder::save(const Tensor& tensor) {
  SavedTensor saved;
  if (graph_.hooks.empty()) {
    saved.tensor = tensor.detached();
  } else {
    saved.hooks = graph_.hooks.back();
    saved.packed = saved.hooks->pack(tensor);
  }
  if (node_->saved.empty()) {
    constexpr std::size_t kMostSaved = 4;  // of nearly all operators
    node_->saved.reserve(kMostSaved);
  }
  node_->saved.push_back(std::move(saved));
  return node_->saved.size() - 1;
}

void NodeBuilder::keep(const Tensor& tensor) {
  node_->kept.push_back(tensor.detached());
}

Tensors NodeBuilder::finish(Tensors outputs, BackwardFunction backward) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].node = node_;
    outputs[i].output = i;
    if (node_) {
      node_->outputs.push_back({outputs[i].elements, outputs[i].dtype});
    }
  }
  if (node_) {
    node_->backward = std::move(backward);
    node_->sequence = graph_.next_sequence();
    node_->label = graph_.tape.label();
  }
  return outputs;
}

Tensor NodeBuilder::finish(Tensor output, BackwardFunction backward) {
  Tensors outputs;
  outputs.push_back(std::move(output));
  return std::move(finish(std::move(outputs), std::move(backward)).front());
}

Tensor Graph::make(std::int64_t elements, DType dtype, AllocationStream stream) {
  Tensor tensor{.storage = nullptr, .elements = elements, .dtype = dtype, .node = nullptr};
  if (elements > 0) {
    tensor.storage =
        std::make_shared<Storage>(tape, tape.make_typed(tensor.bytes(), dtype, stream));
  }
  return tensor;
}

Tensor Graph::make_product(std::int64_t elements, DType dtype) {
  Tensor tensor = make(elements, dtype);
  const InRow row(tape, kWorkspaceRow);
  tape.make_workspace();
  return tensor;
}

Tensor Graph::make_product_with_bias(std::int64_t elements, DType dtype) {
  Tensor tensor = make(elements, dtype);
  const InRow row(tape, kWorkspaceRow);
  tape.make_bias_workspace();
  return tensor;
}

Tensor Graph::make_leaf(const Tensor& data, std::function<void(Tensor)> take) {
  auto node = std::make_shared<Node>();
  node->take = std::move(take);
  node->sequence = std::numeric_limits<std::int64_t>::max();
  node->outputs.push_back({data.elements, data.dtype});
  Tensor leaf = data.detached();
  leaf.node = std::move(node);
  return leaf;
}

Tensor Graph::cast_weight(const Tensor& weight) {
  if (!autocast || weight.dtype == *autocast) {
    return weight;
  }
  const InRow row(tape, kCastRow);
  const bool is_cached =
      weight.requires_grad() && weight.node->take && weight.dtype == DType::kFp32;
  if (!is_cached) {
    return to(*this, weight, *autocast);
  }
  const auto found = place_of_cast_.find(weight.storage);
  if (found != place_of_cast_.end()) {
    return casts_[found->second];
  }
  Tensor cast = to(*this, weight, *autocast);
  place_of_cast_.emplace(weight.storage, casts_.size());
  casts_.push_back(cast);
  return cast;
}

void Graph::end_autocast() {
  place_of_cast_.clear();
  casts_.clear();
}

// One call of backward: what has arrived at each node, and how much is still to come.
struct Graph::Task {
  struct Arrived {
    std::int64_t missing = 0;
    Tensors gradients;  // of its outputs

    Tensor& of(std::size_t output) {
      gradients.resize(std::max(gradients.size(), output + 1));
      return gradients[output];
    }
  };
  // A node of a pass that still runs round this one, as leaves are: where that pass has it.
  struct Outer {
    std::shared_ptr<Node> node;
    std::int64_t pass = 0;
    std::size_t place = 0;
  };
  struct Later {
    bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
      return a->sequence < b->sequence;
    }
  };

  const std::int64_t pass;
  const bool is_outermost;
  std::vector<Arrived> nodes = {};  // by Node::place
  std::vector<Outer> of_outer = {};
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Later> ready = {};

  Arrived& at(const Node& node) { return nodes[node.place]; }

  // Whether the node is new to this pass, which then has a place for it.
  bool meet(const std::shared_ptr<Node>& node) {
    if (node->pass == pass) {
      return false;
    }
    if (!is_outermost && node->pass > 0) {
      of_outer.push_back({node, node->pass, node->place});
    }
    node->pass = pass;
    node->place = nodes.size();
    nodes.emplace_back();
    return true;
  }

  // Every edge into a node that `root` reaches.
  void count(const std::shared_ptr<Node>& root) {
    meet(root);
    std::vector<const Node*> open = {root.get()};
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      for (const Node::Edge& input : node->inputs) {
        if (input.node == nullptr) {
          continue;
        }
        if (meet(input.node)) {
          open.push_back(input.node.get());
        }
        ++at(*input.node).missing;
      }
    }
  }

  void give_back_places() {
    for (const Outer& outer : of_outer) {
      outer.node->pass = outer.pass;
      outer.node->place = outer.place;
    }
  }
};

// Sums in place where nobody else holds what came first (InputBuffer::accumulate).
void Graph::pass(Task& task, const Node::Edge& to, Tensor gradient) {
  Task::Arrived& arrived = task.at(*to.node);
  if (gradient.is_defined()) {
    Tensor& sum = arrived.of(to.output);
    if (!sum.is_defined()) {
      sum = std::move(gradient);
    } else if (sum.is_view || sum.storage.use_count() > 1) {
      sum = make(sum.elements, sum.dtype);
    }
  }
  if (--arrived.missing == 0) {
    task.ready.push(to.node);
  }
}

// The sum of rows goes by way of what blocks of the kernel leave, where they divide rows.
Tensor Graph::summed(const Tensor& gradient, std::int64_t elements, bool sums_columns) {
  const Tensor sum = make(elements, gradient.dtype);
  if (sums_columns) {
    const Tensor partial = make(
        column_sum_bytes(gradient.elements / elements, elements, multiprocessors_), DType::kBool);
  }
  return sum;
}

void Graph::run(Task& task, const std::shared_ptr<Node>& node) {
  Tensors arrived = std::move(task.at(*node).gradients);
  arrived.resize(node->outputs.size());
  if (node->take) {
    node->take(std::move(arrived.front()));
    return;
  }
  Tensors gradients;
  const Label& label = *node->label;
  const InRow row(tape, label.of_gradients != nullptr ? *label.of_gradients : label);
  const std::int64_t outer_node = std::exchange(running_node, node->sequence);
  auto outer_hooks = std::exchange(behind_node, {});
  {
    BackwardCall call(*this, *node, std::move(arrived));
    gradients = node->backward(call);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      Tensor& gradient = gradients[i];
      const Node::Edge& input = node->inputs[i];
      if (input.node == nullptr || !gradient.is_defined()) {
        continue;
      }
      const Node::Output& wanted = input.node->outputs[input.output];
      if (gradient.elements != wanted.elements) {  // of a broadcast input
        gradient = summed(gradient, wanted.elements, node->sums_columns);
      }
      if (gradient.dtype != wanted.dtype) {
        gradient = make(gradient.elements, wanted.dtype);
      }
    }
  }
  for (const auto& hook : std::exchange(behind_node, std::move(outer_hooks))) { hook(); }
  running_node = outer_node;
  node->saved.clear();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (node->inputs[i].node != nullptr) {
      pass(task, node->inputs[i], std::move(gradients[i]));
    }
  }
  node->backward = nullptr;
  node->inputs.clear();
  if (!node->kept.empty()) {
    finished_.push_back(node);
  }
}

void Graph::backward(const Tensor& output, Tensor gradient) {
  if (!output.requires_grad()) {
    throw std::logic_error("Graph::backward: the output has no graph");
  }
  const bool outer_records = std::exchange(records, false);
  ++num_running_;
  Task task{.pass = ++num_passes_, .is_outermost = num_running_ == 1};
  task.count(output.node);
  task.at(*output.node).of(output.output) = std::move(gradient);
  task.ready.push(output.node);
  while (!task.ready.empty()) {
    const std::shared_ptr<Node> node = task.ready.top();
    task.ready.pop();
    run(task, node);
  }
  task.give_back_places();
  --num_running_;
  records = outer_records;
}

Tensor with_backward_hook(Graph& graph, const Tensor& tensor, std::function<void()> hook) {
  NodeBuilder node(graph, {&tensor});
  Tensor alias = tensor;
  return node.finish(std::move(alias), [hook = std::move(hook)](BackwardCall& call) {
    hook();
    return std::move(call.gradients);
  });
}

}  // namespace shardplan::eager
