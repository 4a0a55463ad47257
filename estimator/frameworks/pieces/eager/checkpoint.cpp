#include "estimator/frameworks/pieces/eager/checkpoint.h"

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "estimator/frameworks/pieces/eager/labels.h"

namespace shardplan::eager {
namespace {

// Thrown where the function need not run on.
struct Stopped {};

// A saved tensor's place among all that the function saves; alive while its node wants it.
struct Holder {
  std::size_t place = 0;
};

// Autograd's state while the function runs again.
class AsInForward {
 public:
  AsInForward(Graph& graph, std::shared_ptr<SavedTensorHooks> hooks, std::optional<DType> autocast)
      : graph_(graph),
        outer_records_(std::exchange(graph.records, true)),
        outer_autocast_(std::exchange(graph.autocast, autocast)) {
    graph_.hooks.push_back(std::move(hooks));
  }
  ~AsInForward() {
    graph_.hooks.pop_back();
    graph_.end_autocast();
    graph_.autocast = outer_autocast_;
    graph_.records = outer_records_;
  }
  AsInForward(const AsInForward&) = delete;
  AsInForward& operator=(const AsInForward&) = delete;

 private:
  Graph& graph_;
  bool outer_records_;
  std::optional<DType> outer_autocast_;
};

class Frame final : public SavedTensorHooks, public std::enable_shared_from_this<Frame> {
 public:
  // The input goes through the hooks around the checkpoint, which may take it to the host
  // (_NoopSaveInputs).
  Frame(Graph& graph, const Tensor& input, CheckpointedFunction function)
      : graph_(graph), input_(input), function_(std::move(function)), autocast_(graph.autocast) {
    if (!graph.hooks.empty() && graph.hooks.back()->takes_inputs()) {
      outer_ = graph.hooks.back();
      packed_ = outer_->pack(input);
      input_.storage = nullptr;
    }
  }

  std::shared_ptr<void> pack(const Tensor& tensor) override {
    if (is_running_again_) {
      return pack_again(tensor);
    }
    auto holder = std::make_shared<Holder>(Holder{.place = holders_.size()});
    holders_.push_back(holder);
    return holder;
  }

  Tensor unpack(const std::shared_ptr<void>& packed) override {
    if (again_.empty()) {
      run_again();
    }
    return std::exchange(again_.at(static_cast<Holder*>(packed.get())->place), {});
  }

 private:
  // The graph of the second run keeps what it saves until the run has ended, as it does itself.
  std::shared_ptr<void> pack_again(const Tensor& tensor) {
    const std::size_t place = num_again_++;
    if (!holders_[place].expired()) {
      again_[place] = tensor.detached();
    }
    if (num_again_ == holders_.size()) {
      throw Stopped{};
    }
    return std::make_shared<Tensor>(tensor.detached());
  }

  void run_again() {
    again_.resize(holders_.size());
    num_again_ = 0;
    is_running_again_ = true;
    graph_.tape.begin(MomentKind::kReplay);
    Tensor input = input_;
    if (outer_ != nullptr) {
      input.storage = outer_->unpack(packed_).storage;
    }
    try {
      const AsInForward state(graph_, shared_from_this(), autocast_);
      function_(input);
    } catch (const Stopped&) {}
    graph_.tape.begin(MomentKind::kBackward);
    is_running_again_ = false;
  }

  Graph& graph_;
  Tensor input_;
  std::shared_ptr<SavedTensorHooks> outer_;  // which has the input; none: the frame has it
  std::shared_ptr<void> packed_;
  const CheckpointedFunction function_;
  const std::optional<DType> autocast_;
  std::vector<std::weak_ptr<Holder>> holders_;
  bool is_running_again_ = false;
  std::size_t num_again_ = 0;
  Tensors again_;
};

}  // namespace

WithHooks::WithHooks(Graph& graph, std::shared_ptr<SavedTensorHooks> hooks)
    : graph_(graph), is_on_(hooks != nullptr) {
  if (is_on_) {
    graph_.hooks.push_back(std::move(hooks));
  }
}

WithHooks::~WithHooks() {
  if (is_on_) {
    graph_.hooks.pop_back();
  }
}

Tensor checkpoint(Graph& graph, const Tensor& input, CheckpointedFunction function) {
  if (!graph.records) {
    return function(input);
  }
  // Saved tensors keep the frame, which keeps the input.
  const WithHooks hooks(graph, std::make_shared<Frame>(graph, input, function));
  return function(input);
}

namespace {

// Within a backward pass: the function on what it had, and its graph backward.
Tensors run_again(BackwardCall& call, const Tensor& input, Tensor* other,
                  const CheckpointedFunction& function, std::optional<DType> autocast) {
  Graph& g = call.graph;
  Tensor of_input;
  Tensor of_other;
  Tensor outer_other;
  if (other != nullptr) {
    outer_other = std::exchange(
        *other, g.make_leaf(other->detached(),
                            [&of_other](Tensor gradient) { of_other = std::move(gradient); }));
  }
  const Tensor leaf =
      g.make_leaf(input, [&of_input](Tensor gradient) { of_input = std::move(gradient); });
  g.tape.begin(MomentKind::kReplay);
  Tensor again;
  {
    const std::optional<DType> outer = std::exchange(g.autocast, autocast);
    g.records = true;
    again = function(leaf);
    g.records = false;
    g.end_autocast();
    g.autocast = outer;
  }
  g.tape.begin(MomentKind::kBackward);
  g.backward(again, call.gradients[0]);
  if (other != nullptr) {
    *other = std::move(outer_other);
  }
  return Tensors{std::move(of_input), std::move(of_other)};
}

Tensor without_graph(Graph& graph, const Tensor& input, const CheckpointedFunction& function) {
  const NoGrad no_grad(graph);
  return function(input).detached();
}

}  // namespace

Tensor reentrant_checkpoint(Graph& graph, const Tensor& input, CheckpointedFunction function,
                            Tensor* other) {
  const Tensor second = other != nullptr ? *other : Tensor{};
  NodeBuilder node(graph, {&input, &second});
  if (!node.is_needed()) {
    return function(input);
  }
  node.save(input);
  if (other != nullptr) {
    node.save(second);
  }
  const std::optional<DType> autocast = graph.autocast;
  return node.finish(without_graph(graph, input, function), [=](BackwardCall& call) {
    return run_again(call, call.saved(0), other, function, autocast);
  });
}

Tensor host_checkpoint(Graph& graph, const Tensor& input, CheckpointedFunction function,
                       Tensor* other) {
  const Tensor second = other != nullptr ? *other : Tensor{};
  NodeBuilder node(graph, {&input, &second});
  if (!node.is_needed()) {
    return function(input);
  }
  const std::int64_t elements = input.elements;
  const DType dtype = input.dtype;
  const std::optional<DType> autocast = graph.autocast;
  return node.finish(without_graph(graph, input, function), [=](BackwardCall& call) {
    const auto brought_back = [&] {
      const InRow row(call.graph.tape, kBroughtBackRow);
      return call.graph.make(elements, dtype);
    };
    return run_again(call, brought_back(), other, function, autocast);
  });
}

}  // namespace shardplan::eager
