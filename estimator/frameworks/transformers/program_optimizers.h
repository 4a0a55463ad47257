// Optimizers that programs around the Trainer bring along: GaLore, APOLLO, Adam-mini, BAdam and
// ms-swift's MuonClip. Each class plays the steps of one of them.
//
// Sources: galore-torch 1.0 adamw.py, galore_projector.py, of which ms-swift 3602360
// swift/optimizers/galore has a copy; apollo-torch 1.0.3 apollo.py, random_projector.py; adam-mini
// 1.1.1 adam_mini.py; badam 1.4 block_optim.py; ms-swift 3602360 swift/optimizers/muonclip.py;
// LLaMA-Factory ff6d4d1 train/trainer_utils.py.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "estimator/frameworks/pieces/eager/autograd.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

class ProgramOptimizer {
 public:
  virtual ~ProgramOptimizer() = default;
  // The model is whole, and nothing has run.
  virtual void begin(const std::vector<eager::Parameter*>& /*trained*/) {}
  virtual void step(const std::vector<eager::Parameter*>& trained) = 0;
  // Of one parameter alone, by an optimizer of its own.
  virtual void step_alone(eager::Parameter& /*parameter*/) {}
};

// AdaLoRA's importance of each trained number, of which a step makes three tensors anew behind the
// update (peft 0.20 tuners/adalora/layer.py RankAllocator.update_ipt).
class RankImportance {
 public:
  explicit RankImportance(eager::Graph& graph) : graph_(graph) {}
  void update(const std::vector<eager::Parameter*>& trained);

 private:
  struct Scores {
    eager::Tensor importance, mean, spread;
  };
  eager::Graph& graph_;
  std::map<const eager::Parameter*, Scores> scores_;
};

// GaLore and APOLLO alone are run so.
bool steps_in_backward(const Job& job);

// None for optimizers of PyTorch, bitsandbytes, torchao and transformers.
std::unique_ptr<ProgramOptimizer> program_optimizer(eager::Graph& graph, const Job& job);

// A tensor of that row.
eager::Tensor made_in(eager::Graph& graph, const eager::Label& label, std::int64_t elements,
                      DType dtype);

// Elements of a head's part of queries and keys, as Adam-mini counts them: hidden * hidden / heads.
std::int64_t adam_mini_head_elements(const ModelSpec& model);

}  // namespace shardplan::transformers
