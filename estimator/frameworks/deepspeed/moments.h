// Moments of a part in fp32 that ZeRO has the optimizer step: torch's and DeepSpeed's AdamW, or
// bitsandbytes' of 8 bits (0.50.2 optim/optimizer.py init_state, get_state_buffer). Overrides that
// transformers has for the embedding name its parameter, which no part is. Paged moments of large
// parts lie in managed memory, outside the allocator.
#pragma once

#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

class Moments {
 public:
  // What is offloaded is stepped by DeepSpeed's AdamW on the host, whatever the trainer's optimizer
  // (accelerate 1.15 utils/deepspeed.py map_pytorch_optim_to_deepspeed).
  Moments(const Job& job, const Plan& plan, eager::Tape& tape)
      : tape_(tape), kind_(plan.offload.optimizer == 0 ? job.optimizer : OptimizerKind::kAdamW) {}

  // `counts`: the steps, on the GPU.
  void make(std::int64_t elements, bool counts);

 private:
  eager::Tape& tape_;
  const OptimizerKind kind_;
  bool has_maps_ = false;
};

// Bytes of a rank's paged moments in managed memory.
std::int64_t managed_bytes(const Job& job, const Plan& plan);

}  // namespace shardplan::deepspeed
