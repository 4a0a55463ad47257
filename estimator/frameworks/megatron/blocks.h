// Pieces of Megatron-LM's row tables with Transformer Engine. Sources, read at
//   Megatron-LM d98e8a6: core/transformer/{transformer_layer,attention,multi_latent_attention}.py,
//     core/transformer/moe/{moe_layer,token_dispatcher,experts}.py, core/fusions/*, core/
//     tensor_parallel/{layers,cross_entropy}.py, core/models/gpt/gpt_model.py;
//   Transformer Engine v2.9: pytorch/module/{linear,layernorm_linear,grouped_linear,base}.py,
//     pytorch/attention/dot_product_attention/{backends,context_parallel}.py,
//     pytorch/triton/cross_entropy.py.
#pragma once

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/expert_routing.h"

namespace shardplan::megatron {

// What the pieces of one block are written with.
struct MegatronBlock {
  const Job& job;
  const Plan& plan;
  BlockShape shape;
  LayerSpec layer = {};  // one of its kind
  bool is_moe = false;
  RowList& rows;
  std::vector<AdapterShape> adapters = {};

  const RecomputeModules& recomputed() const { return plan.recompute.modules; }
  bool replays_core_attention() const { return selective() && recomputed().core_attn; }
  // Of the tokens that routed experts see.
  std::int64_t routed_width() const { return shardplan::routed_width(job.model); }
  bool selective() const { return plan.recompute.granularity == RecomputeGranularity::kSelective; }
  // The step at which a weight gradient is computed: its own, the delayed one, or, of two
  // microbatches' layers side by side, behind the backward of the experts or of attention.
  Step weight_step(Step own) const {
    const Step behind = own <= Step::kBackwardDispatch ? Step::kBackwardDispatch : kLastBackward;
    return shape.delayed_weight                           ? Step::kWeight
           : job.profile.overlap_moe_expert_parallel_comm ? behind
                                                          : own;
  }
  // Inputs of linear layers are saved in fp8 under fp8 training.
  DType linear_dtype() const {
    return plan.precision == Precision::kFp8 ? DType::kFp8 : shape.dtype;
  }
  // What another module has saved in bf16 anyway is cast to fp8 again in backward rather than saved
  // by the linear layer too; delayed scaling cannot (core_v0.16.1 core/transformer/{attention,
  // multi_latent_attention}.py and moe/shared_experts.py, set_save_original_input).
  bool saves_fp8_of_saved() const { return uses_delayed_scaling(job, plan); }
  // Of that type, in one layout, with the scales that lie beside them.
  std::int64_t linear_elements(std::int64_t values) const {
    return plan.precision == Precision::kFp8 ? fp8_activation_bytes(job, values) : values;
  }
  // An input that was gathered again for the weight gradient. Values with one scale a tensor can
  // only be gathered row-wise, and are transposed behind it where products take one layout (module/
  // linear.py, supports_only_rowwise_all_gather; update_usage); others are gathered column-wise.
  std::int64_t gathered_again(std::int64_t values) const {
    const bool transposes = plan.precision == Precision::kFp8 && fp8_scales_tensors(job);
    return (transposes ? fp8_copies(job) : 1) * linear_elements(values);
  }
  // An output gradient as the products of backward read it, in one layout each.
  std::int64_t output_gradient(std::int64_t values) const {
    return (plan.precision == Precision::kFp8 ? fp8_copies(job) : 1) * linear_elements(values);
  }
};

// Values that a norm saves per token of this rank's sequence: one, of LayerNorm two.
inline std::int64_t norm_statistics(const MegatronBlock& block) {
  return (block.job.model.layer_norm ? 2 : 1) * block.shape.sharded_tokens;
}

// Dropout after attention and FFN saves one byte an element.
inline bool drops_hidden(const MegatronBlock& block) {
  return block.job.hidden_dropout > 0;
}

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind);
SeenByBlock seen_by_block(const Job& job, const Plan& plan, BlockKind kind);

}  // namespace shardplan::megatron
