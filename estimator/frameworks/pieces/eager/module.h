// Calls of a model's modules, for who hooks into them (torch.nn.Module's register_forward_pre_hook,
// register_forward_hook).
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "estimator/frameworks/pieces/eager/autograd.h"

namespace shardplan::eager {

// A module, by what stands for it and its name there, and its parameters.
struct Module {
  const void* place = nullptr;
  std::string_view name;
  std::vector<Parameter*> parameters;
  bool is_leaf = false;       // it has modules of its own, into which nobody hooks
  bool reads_others = false;  // its parameters are those of other modules, which it reads
};

inline constexpr std::string_view kWholeModel = "causal_lm";

// Hooks of all modules. What they return takes the place of a call's input and output.
class ModuleHooks {
 public:
  virtual ~ModuleHooks() = default;
  virtual Tensor before_call(const Module& module, const Tensor& input) = 0;
  virtual Tensor behind_call(const Module& module, const Tensor& output) = 0;
  // A module that runs reads its parameters, which are those of others.
  virtual void read(const Module& /*module*/) {}
  // Modules within leaves have none of them.
  virtual bool passes_over_leaves() const { return false; }
  // They stand in front of hooks of the model itself.
  virtual bool comes_first() const { return false; }
};

// Hooks into what runs below a leaf are gone while it lives.
class WithinLeaf {
 public:
  WithinLeaf(Graph& graph, const Module& module)
      : graph_(graph),
        outer_(module.is_leaf && graph.modules != nullptr && graph.modules->passes_over_leaves()
                   ? std::exchange(graph.modules, nullptr)
                   : graph.modules) {}
  ~WithinLeaf() { graph_.modules = outer_; }
  WithinLeaf(const WithinLeaf&) = delete;
  WithinLeaf& operator=(const WithinLeaf&) = delete;

 private:
  Graph& graph_;
  ModuleHooks* const outer_;
};

template <typename Function>
Tensor call_module(Graph& graph, const Module& module, const Tensor& input, Function function) {
  if (graph.modules == nullptr) {
    return function(input);
  }
  const Tensor given = graph.modules->before_call(module, input);
  Tensor output;
  {
    const WithinLeaf within(graph, module);
    output = function(given);
  }
  return graph.modules->behind_call(module, output);
}

inline void read_others(Graph& graph, const Module& module) {
  if (graph.modules != nullptr) {
    graph.modules->read(module);
  }
}

}  // namespace shardplan::eager
