// The same model with Liger's kernels for norms, rotary embedding, SwiGLU and the head with its
// loss. Source: linkedin/Liger-Kernel 0.8.5 and 0.8.2, src/liger_kernel/ops/rms_norm.py, rope.py,
// swiglu.py, fused_linear_cross_entropy.py, transformers/model/llama.py, qwen3.py, loss_utils.py.
#pragma once

#include <cstdint>

#include "estimator/frameworks/deepspeed/llama.h"

namespace shardplan::deepspeed {

inline bool uses_liger(const Job& job) {
  return job.profile.liger_kernel != LigerKernel::kOff;
}

// Tokens whose logits exist at once: about as many as logits of all are as large as the hidden
// state, to the next power of two.
std::int64_t liger_chunk_tokens(std::int64_t tokens, const ModelSpec& model);

class LigerLlama final : public EagerLlama {
 public:
  LigerLlama(const Job& job, const LlamaSizes& sizes, bool checkpoints, eager::Tape& tape,
             DeepspeedZero& hooks);

 private:
  // Nobody calls the head: the whole model reads its weight, which ZeRO-3 therefore gathers and
  // lets go of with it.
  ModuleCall call(Module module, std::int64_t layer = 0) const override;
  void norm_forward(const ModuleCall& norm, LlamaNorm& tensors, TapeTensor& input,
                    bool saves) override;
  void turn(TapeTensor& query, TapeTensor& key, LlamaLayer& layer) override;
  void silu_forward(std::int64_t, LlamaLayer&, bool) override {}
  void loss_forward() override;
  TapeTensor loss_backward() override;
  TapeTensor norm_backward(const ModuleCall& norm, LlamaNorm& tensors,
                           TapeTensor& of_output) override;
  void turn_backward(TapeTensor&) override {}
  void lay_as_projection(TapeTensor&) override {}
  TapeTensor up_gradient(LlamaLayer& layer, TapeTensor& of_product) override;
  TapeTensor gate_gradient(std::int64_t index, LlamaLayer& layer) override;

  bool keeps_plain(const ModuleCall& norm) const;
  void all_chunks();
  void chunk_by_chunk();

  std::int64_t tokens_ = 0;
  std::int64_t chunk_tokens_ = 0;
  std::int64_t multiprocessors_ = 0;
  bool is_through_082_ = false;
  TapeTensor of_hidden_, of_head_;
};

}  // namespace shardplan::deepspeed
