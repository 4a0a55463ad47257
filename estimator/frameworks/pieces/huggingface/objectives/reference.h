// A reference model beside the one that is trained: the same model as it was loaded, whole on every
// rank, of which nothing is trained.
#pragma once

#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::huggingface {

// Its weights have a row of their own.
class ReferenceHolder final : public Holder {
 public:
  using Holder::Holder;
  void load(eager::Parameter& parameter, const eager::Label& label, const Shape& shape, DType dtype,
            bool is_trained) override;
};

// In the types of the trained model's weights; LLaMA-Factory's in that of products. accelerate
// prepares it without DistributedDataParallel (1.15 accelerator.py prepare_model, evaluation_mode);
// DeepSpeed's engine of it has ZeRO 0 and no optimizer (TRL 1.8.0 models/utils.py
// prepare_deepspeed; DeepSpeed 0.19.8 runtime/engine.py _configure_bf16_optimizer, whose DummyOptim
// takes no memory). That of ASFT keeps keys and values, as LLaMA-Factory has models that are not
// trained do (ff6d4d1 src/llamafactory/model/model_utils/kv_cache.py). The job and plan stay as
// long as the model.
class Reference {
 public:
  Reference(eager::Graph& graph, const Job& trained, const Plan& plan);

  CausalLm& model() { return model_; }

 private:
  const Job job_;
  const Plan plan_;
  ReferenceHolder holder_;
  CausalLm model_;
};

}  // namespace shardplan::huggingface
