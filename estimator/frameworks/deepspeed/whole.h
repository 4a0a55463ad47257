// DeepSpeed without ZeRO (runtime/fp16/unfused_optimizer.py): every rank has an fp32 copy of every
// trained parameter, and the optimizer's state of it; gradients are summed in buckets behind the
// last backward pass of a step (runtime/engine.py buffered_allreduce_fallback).
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/deepspeed/moments.h"
#include "estimator/frameworks/deepspeed/zero.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

class WholeOptimizer final : public DeepspeedZero {
 public:
  // `trained`: the trained parameters, in the order in which the model has them.
  WholeOptimizer(const Job& job, const Plan& plan, eager::Tape& tape,
                 const std::vector<ZeroTensor>& trained);

  void begin_microbatch(bool is_last) override { is_boundary_ = is_last; }
  void take(std::int64_t parameter, eager::Tensor gradient) override;
  void end_backward() override;
  void step() override;

 private:
  void make_copies();
  // A step with gradients of zeros makes the state.
  void initialize_states();
  std::vector<TapeTensor> wide_gradients();

  eager::Tape& tape_;
  const DType half_;
  const bool copies_for_check_;
  bool is_boundary_ = false;
  std::vector<std::int64_t> elements_;  // by trained parameter
  std::vector<eager::Tensor> gradients_;
  Moments moments_;
};

}  // namespace shardplan::deepspeed
