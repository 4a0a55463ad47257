// Pieces of Megatron-LM's row tables with Transformer Engine. Sources, read at
//   Megatron-LM d98e8a6: core/transformer/{transformer_layer,attention,multi_latent_attention}.py,
//     core/transformer/moe/{moe_layer,token_dispatcher,experts}.py, core/fusions/*, core/
//     tensor_parallel/{layers,cross_entropy}.py, core/models/gpt/gpt_model.py;
//   Transformer Engine v2.9: pytorch/module/{linear,layernorm_linear,grouped_linear,base}.py,
//     pytorch/attention/dot_product_attention/{backends,context_parallel}.py,
//     pytorch/triton/cross_entropy.py.
#pragma once

#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan {

// What the pieces of one block are written with.
struct MegatronBlock {
  const Job& job;
  const Plan& plan;
  BlockShape shape;
  bool is_moe = false;
  RowList& rows;

  const RecomputeModules& recomputed() const { return plan.recompute.modules; }
  bool replays_core_attention() const { return selective() && recomputed().core_attn; }
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

struct AttentionWidths {  // per token on one tp rank
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t value = 0;
  std::int64_t output = 0;
  std::int64_t head_dim = 0;  // of queries and keys
  std::int64_t qkv() const { return query + key + value; }
};

AttentionWidths attention_widths(const MegatronBlock& block);

// What runs, with kAuto resolved as Transformer Engine does.
AttentionBackend attention_backend(const Job& job, const Plan& plan);
// The probabilities of all pairs are written out and saved.
bool saves_probabilities(const Job& job, const Plan& plan);
// Products, norms and attention are Megatron-core's own (get_gpt_layer_local_spec).
inline bool has_local_layers(const Job& job) {
  return job.profile.attention_backend == AttentionBackend::kLocal;
}
// Those of grouped queries are of copies of the keys and values, one for every query head.
bool repeats_key_values(const MegatronBlock& block);
// Without a rotary embedding queries, keys and values stay parts of the product's output, as cuDNN
// and the batched products take them; FlashAttention wants them batch first.
bool works_on_packed_qkv(const MegatronBlock& block);
// A batch of one is the same in both orders.
bool copies_batch_first(const MegatronBlock& block);
// core_attn recompute of what works on copies, and core's own attention, which takes the values as
// the product made them; the copies of multi-latent attention are made before.
bool keeps_packed_qkv(const MegatronBlock& block);
// Dropout after attention and FFN saves one byte an element.
inline bool drops_hidden(const MegatronBlock& block) {
  return block.job.hidden_dropout > 0;
}

void add_layer_input(MegatronBlock& block);
void add_attention(MegatronBlock& block);
void add_te_attention(MegatronBlock& block);
void add_context_parallel(MegatronBlock& block);
void add_dense_ffn(MegatronBlock& block);
void add_moe(MegatronBlock& block);
// What the microbatch holds that runs forward beside this one's backward; behind all other rows.
void add_other_microbatch(MegatronBlock& block);
// Elements of the rows that a layer's experts exchange and the schedule of such layers holds
// between steps; 0 without it.
std::int64_t held_exchange(const Job& job, const Plan& plan);

// Kept, or dropped in forward and computed again in backward, from `replayed` on.
void keep_or_recompute(MegatronBlock& block, bool recomputed, Step replayed, std::string_view name,
                       std::int64_t elements, DType dtype, Life life, std::string_view formula);

// CheckpointWithoutOutput copies what it computed again into the storage that the consumers of the
// output saved, and keeps its own tensor until its backward has run (core_v0.16.1
// core/tensor_parallel/random.py:664-722).
inline constexpr std::string_view kComputedAgain =
    "computed again, beside the copy in the storage that was discarded";

// Whether gradients are added to the main ones on another stream: Megatron-LM wraps the model on a
// stream of its own, and autograd's accumulation runs where that was (core_v0.16.1
// training/training.py, get_model; torch/csrc/autograd/engine.cpp). Its memory is free once
// that stream got there: taken as the next backward pass at the latest. Megatron-FSDP copies them
// into its buckets.
bool accumulates_beside(const Job& job, const Plan& plan);

std::vector<BlockRow> megatron_rows(const Job& job, const Plan& plan, BlockKind kind);
// Of the local layer spec.
std::vector<BlockRow> megatron_local_rows(const Job& job, const Plan& plan, BlockKind kind);
SeenByBlock seen_by_megatron_block(const Job& job, const Plan& plan, BlockKind kind);

// Weight gradients of `count` linear layers of these elements in the parameters' dtype, where they
// are not added into the main gradient by the products themselves (gradient_accumulation_fusion
// off); else the first of its shape makes a dummy of its size, a row of the state.
void add_weight_gradient(MegatronBlock& block, std::string_view name, std::int64_t elements,
                         Step step, std::int64_t count = 1);

// Output gradient of a linear layer under fp8, cast for its two products (Transformer Engine
// pytorch/module/base.py, grad_output_preprocess).
void add_fp8_cast(MegatronBlock& block, std::string_view name, std::int64_t elements, Step step);
// The same before it is gathered: this rank's part, row-wise alone with one scale a tensor
// (pytorch/distributed.py, _all_gather_fp8).
void add_fp8_part(MegatronBlock& block, std::string_view name, std::int64_t elements, Step step);

}  // namespace shardplan
