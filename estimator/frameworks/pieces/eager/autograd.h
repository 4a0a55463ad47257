// PyTorch's eager autograd as far as memory sees it: tensors that count who holds them, a graph of
// operators with what they save, and the engine that runs it backward. A model written over it in
// the order of its Python source makes and frees the same tensors in the same order.
//
// Sources, PyTorch 2.11: torch/csrc/autograd/engine.cpp (order, release of saved tensors),
// input_buffer.cpp (sums of gradients), functions/accumulate_grad.h (gradients of leaves),
// tools/autograd/derivatives.yaml and gen_autograd_functions.py (derivatives of an operator in the
// alphabetical order of its arguments), aten/src/ATen/autocast_mode.cpp (casts of weights).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "estimator/frameworks/pieces/eager/tape.h"
#include "estimator/plan/dtype.h"

namespace shardplan::eager {

class Graph;
class ModuleHooks;
class Node;

// Memory of one tensor and of all views of it: freed when nobody holds it any more.
class Storage {
 public:
  Storage(Tape& tape, TapeTensor tensor) : tape_(tape), tensor_(tensor) {}
  ~Storage() { tape_.free(tensor_); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  bool is_empty() const { return tensor_.id == 0; }
  bool is_parameter = false;  // of a model
  // The memory alone goes and comes; whoever holds the tensor holds it on (Tensor.resize_).
  void empty() { tape_.free(tensor_); }
  void fill(std::int64_t bytes, DType dtype, AllocationStream stream = AllocationStream::kCompute) {
    tensor_ = tape_.make_typed(bytes, dtype, stream);
  }

 private:
  Tape& tape_;
  TapeTensor tensor_;
};

// A tensor or a view of one. Copies share its storage and its place in the graph.
struct Tensor {
  std::shared_ptr<Storage> storage;  // none: no bytes, or a tensor of the host
  std::int64_t elements = 0;
  DType dtype = DType::kBf16;
  std::shared_ptr<Node> node;  // what made it, or what takes a leaf's gradient; none: no gradient
  bool is_view = false;        // of a gradient: another tensor shares its storage
  std::size_t output = 0;      // which of its node's outputs it is
  bool is_strided = false;     // saved with its elements in another order than in memory

  bool requires_grad() const { return node != nullptr; }
  bool is_defined() const { return elements > 0; }
  std::int64_t bytes() const { return elements * bytes_of(dtype); }
  // The same storage outside the graph.
  Tensor detached() const { return {storage, elements, dtype, nullptr, is_view}; }
  Tensor viewed(std::int64_t viewed_elements) const {
    return {storage, viewed_elements, dtype, node, is_view, output};
  }
};
using Tensors = std::vector<Tensor>;

// A leaf that stays: its data, and its gradient from its first backward pass on.
struct Parameter {
  Tensor data;  // with a node where it is trained
  Tensor gradient;
  std::int64_t rows = 1;       // its first dimension
  DType dtype = DType::kBf16;  // in which the optimizer has it
  bool is_trained = false;
  bool is_reached = true;     // by gradients, where it is trained
  bool is_embedding = false;  // of a table of tokens
  bool is_end = false;        // that, or the head
  bool is_bias = false;
  bool is_query_or_key = false;  // or their projection's weight
  // As it was loaded, where other ranks have other parts of it; 0: it is whole.
  std::int64_t whole_elements = 0;
};

// Where saved tensors go while it is the innermost (torch.autograd.graph.saved_tensors_hooks).
class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  // A tensor is about to be saved. Returns what its node keeps in its place.
  virtual std::shared_ptr<void> pack(const Tensor& tensor) = 0;
  virtual Tensor unpack(const std::shared_ptr<void>& packed) = 0;
  // Inputs of checkpoints go through them as well.
  virtual bool takes_inputs() const { return false; }
};

struct SavedTensor {
  Tensor tensor;                 // outside the graph; undefined where hooks have taken it
  std::shared_ptr<void> packed;  // what they gave back
  std::shared_ptr<SavedTensorHooks> hooks;
};

// A run of an operator's backward.
class BackwardCall {
 public:
  BackwardCall(Graph& graph_of, Node& node, Tensors of_outputs)
      : graph(graph_of), gradients(std::move(of_outputs)), node_(node) {}

  Tensor saved(std::size_t index) const;
  // Whether an input's gradient is asked for.
  bool wants(std::size_t input) const;

  Graph& graph;
  Tensors gradients;  // of the outputs

 private:
  Node& node_;
};

using BackwardFunction = std::function<Tensors(BackwardCall&)>;

// An operator in the graph: what it saved, and how gradients of its outputs become those of its
// inputs.
class Node {
 public:
  // One gradient for each input; undefined where none is wanted.
  BackwardFunction backward;
  struct Edge {
    std::shared_ptr<Node> node;  // none: no gradient wanted
    std::size_t output = 0;      // of that node
  };
  std::vector<Edge> inputs;
  std::vector<SavedTensor> saved;
  std::vector<Tensor> kept;  // attributes of a Python function: until the graph goes
  std::int64_t sequence = 0;
  // What a gradient is summed to and cast to before a node gets it (validate_outputs).
  struct Output {
    std::int64_t elements = 0;
    DType dtype = DType::kBf16;
  };
  std::vector<Output> outputs;
  std::function<void(Tensor)> take;  // of a leaf: takes its gradient
  bool sums_columns = false;         // a broadcast input is a row: its gradient sums all rows
  const Label* label = nullptr;      // in which its operator ran
  // The backward pass that counted it last, and its place there.
  std::int64_t pass = 0;
  std::size_t place = 0;
};

// Builds a node while its operator runs.
class NodeBuilder {
 public:
  NodeBuilder(Graph& graph, std::span<const Tensor* const> inputs);
  NodeBuilder(Graph& graph, std::initializer_list<const Tensor*> inputs)
      : NodeBuilder(graph, std::span<const Tensor* const>(inputs.begin(), inputs.size())) {}

  bool is_needed() const { return node_ != nullptr; }  // no: nothing is saved, no node is made
  // Returns the place of the saved tensor.
  std::size_t save(const Tensor& tensor);
  void keep(const Tensor& tensor);
  void sum_columns() { node_->sums_columns = true; }
  // Gives the operator's output its node, or each of several.
  Tensor finish(Tensor output, BackwardFunction backward);
  Tensors finish(Tensors outputs, BackwardFunction backward);

 private:
  Graph& graph_;
  std::shared_ptr<Node> node_;
};

// State of a rank's thread: where it writes, whether gradients are recorded, autocast, hooks.
class Graph {
 public:
  // `multiprocessors`: of the GPU.
  Graph(std::int64_t workspace_bytes, std::int64_t multiprocessors)
      : tape(workspace_bytes), multiprocessors_(multiprocessors) {}

  Tape tape;
  bool records = true;  // no: torch.no_grad
  std::vector<std::shared_ptr<SavedTensorHooks>> hooks;
  bool calls_python_linear = false;  // python_linear.h
  ModuleHooks* modules = nullptr;    // module.h; none: nobody hooks into calls of modules
  // Called once behind the node that now runs backward (Node.register_hook).
  std::vector<std::function<void()>> behind_node;
  std::int64_t running_node = 0;  // by its sequence; 0: none

  Tensor make(std::int64_t elements, DType dtype,
              AllocationStream stream = AllocationStream::kCompute);
  // The output of a matrix product.
  Tensor make_product(std::int64_t elements, DType dtype);
  Tensor make_product_with_bias(std::int64_t elements, DType dtype);
  Tensor make_leaf(const Tensor& data, std::function<void(Tensor)> take);

  // Runs the graph of a scalar, or of an output whose gradient is given.
  void backward(const Tensor& output, Tensor gradient);
  bool runs_backward() const { return num_running_ > 0; }
  // The output of the outermost backward pass is gone, and with it its graph.
  void drop_graph() { finished_.clear(); }

  // --- autocast ---
  std::optional<DType> autocast;  // what products compute in
  // In that type; of trained weights in fp32 once until autocast ends (cached_cast).
  Tensor cast_weight(const Tensor& weight);
  void end_autocast();

  std::int64_t multiprocessors() const { return multiprocessors_; }
  std::int64_t next_sequence() { return ++sequence_; }

 private:
  struct Task;
  void run(Task& task, const std::shared_ptr<Node>& node);
  Tensor summed(const Tensor& gradient, std::int64_t elements, bool sums_columns);
  void pass(Task& task, const Node::Edge& to, Tensor gradient);

  const std::int64_t multiprocessors_;
  std::int64_t sequence_ = 0;
  std::int64_t num_running_ = 0;  // backward passes, one within the other
  std::int64_t num_passes_ = 0;   // that have begun
  std::vector<std::shared_ptr<Node>> finished_;
  std::map<std::weak_ptr<Storage>, std::size_t, std::owner_less<>> place_of_cast_;
  Tensors casts_;  // in the order in which they were made, and go
};

// Nothing is recorded while it lives.
class NoGrad {
 public:
  explicit NoGrad(Graph& graph) : graph_(graph), outer_(std::exchange(graph.records, false)) {}
  ~NoGrad() { graph_.records = outer_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Graph& graph_;
  bool outer_;
};

// The same tensor; `hook` is called when its gradient arrives, which goes on as it is.
Tensor with_backward_hook(Graph& graph, const Tensor& tensor, std::function<void()> hook);

}  // namespace shardplan::eager
