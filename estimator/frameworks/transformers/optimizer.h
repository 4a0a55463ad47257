// Optimizers of transformers' Trainer: what they keep of each parameter, and what a step makes.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/frameworks/transformers/program_optimizers.h"
#include "estimator/plan/job.h"

namespace shardplan::transformers {

class Optimizer {
 public:
  Optimizer(eager::Graph& graph, const huggingface::Holder& holder, const Job& job,
            const Plan& plan);

  // The model is whole, and nothing has run.
  void begin(const std::vector<eager::Parameter*>& trained);
  // The first step makes the states, one parameter after the other.
  void step(const std::vector<eager::Parameter*>& trained);

  // Of a parameter whose gradient is there, before those of others (OptimizerSteps::kInBackward).
  void step_alone(eager::Parameter& parameter) { program_->step_alone(parameter); }

  // Bytes of a parameter's paged state, which is managed memory: PyTorch's allocator has no part in
  // it, and its pages lie on the GPU as long as there is room.
  std::int64_t managed_bytes(const eager::Parameter& parameter) const;

 private:
  eager::Tensor make(const eager::Label& label, std::int64_t elements, DType dtype);
  void keep(const eager::Label& label, std::int64_t elements, DType dtype);
  // Into rows and columns, by Adafactor.
  bool is_factored(const eager::Parameter& parameter) const;
  void make_state(const eager::Parameter& parameter);
  void make_adamw_state(const eager::Parameter& parameter);
  bool is_wide(const eager::Parameter& parameter) const;
  bool is_managed(const eager::Parameter& parameter) const;
  void make_bitsandbytes_state(const eager::Parameter& parameter);
  void make_torchao_state(const eager::Parameter& parameter);
  void make_adafactor_state(const eager::Parameter& parameter);
  void step_foreach(const std::vector<eager::Parameter*>& trained);
  void step_one_by_one(const std::vector<eager::Parameter*>& trained);
  void step_adafactor(const std::vector<eager::Parameter*>& trained);
  void step_muon(const std::vector<eager::Parameter*>& trained);
  void step_torchao(const eager::Parameter& parameter);

  eager::Graph& graph_;
  const huggingface::Holder& holder_;
  const Job& job_;
  // DTensors beside plain tensors, of which no kernel takes both: AdamW steps one by one
  // (transformers 5.17 trainer_optimizer.py has_mixed_dtensor).
  const bool is_mixed_;
  bool has_state_ = false;
  bool has_maps_ = false;
  std::set<std::int64_t> tuned_;  // sizes of parameters whose kernels are
  eager::Tensors states_;
  const std::unique_ptr<ProgramOptimizer> program_;  // none: what follows the Trainer's own names
};

}  // namespace shardplan::transformers
