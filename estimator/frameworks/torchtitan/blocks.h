// Pieces of torchtitan's row tables (version and sources: data/frameworks/torchtitan.md). Letters
// in block_rows.h; n elements of a block's parameters on a rank, S the ranks that share them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/frameworks/torchtitan/parameters.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_state.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan::torchtitan {

// Schedules of several chunks a rank run a list of actions (_PipelineScheduleRuntime of
// torch.distributed.pipelining); those of one, loops that hold their last variables.
inline bool runs_action_list(const Plan& plan) {
  return plan.pp > 1 && plan.schedule != Schedule::k1F1B && plan.schedule != Schedule::kGpipe;
}

inline bool is_gpt_oss(const ModelSpec& model) {
  return model.family == "gpt_oss";
}

// models/qwen3 and models/gpt_oss turn queries and keys half by half, the others complex numbers.
inline bool turns_halves(const ModelSpec& model) {
  return model.qk_norm || is_gpt_oss(model);
}

// Llama 3 keeps half a head's rotations as complex64, Qwen 3 a head's cosines and sines in fp32.
inline std::int64_t rotary_table_elements(const Job& job) {
  return (turns_halves(job.model) ? 2 : 1) * job.sequence_length * job.model.head_dim;
}

// models/gpt_oss/model/model.py, GptOssModel: layers are turned to bf16 as they are made, so that
// their parameters, reduced gradients and moments are; both ends stay fp32.
inline DType layer_parameter_dtype(const ModelSpec& model) {
  return is_gpt_oss(model) ? DType::kBf16 : DType::kFp32;
}

struct TitanBlock {
  const Job& job;
  const Plan& plan;
  bool is_moe = false;  // a layer with experts; of an end, the layers beside it
  BlockShape shape;
  FsdpPlan fsdp;
  TitanParameters parameters;
  RowList rows{kAllocatorRounding};

  bool recomputes_ops() const { return plan.recompute.policy == "every_second_matmul"; }
  bool is_autocast() const { return !fsdp.is_sharded; }
  bool norms_query_key() const { return job.model.qk_norm; }
  bool is_gpt_oss() const { return torchtitan::is_gpt_oss(job.model); }
  bool turns_halves() const { return torchtitan::turns_halves(job.model); }
  DType parameter_dtype() const { return layer_parameter_dtype(job.model); }
  // An all-reduce over replicas keeps what it reduced in fp32 to the end of backward (torch
  // _fsdp_param_group.py, AllReduceState): the gradient itself, but where that is bf16, and in
  // later microbatches, which add to it.
  bool keeps_reductions() const {
    return fsdp.is_sharded && fsdp.reduces_each_backward && plan.dp_replicate > 1 &&
           (parameter_dtype() == DType::kBf16 || has_several_microbatches());
  }
  // Also where the batch does not divide: floors are asked with any microbatch.
  bool has_several_microbatches() const {
    return job.global_batch > data_parallel_size(job, plan) * plan.micro_batch;
  }
  // Llama 4 multiplies rows by their scores before its experts (models/moe/moe.py,
  // score_before_experts), the others behind.
  bool scores_rows_first() const { return job.model.family == "llama4_text"; }
  bool is_pipelined() const { return plan.pp > 1; }
  // Layers of which nothing is recomputed keep what their graph saves.
  bool has_whole_layers() const {
    return plan.recompute.granularity == RecomputeGranularity::kNone ||
           plan.recompute.policy == "every_second_layer";
  }
  std::int64_t sequence() const { return shape.hidden * shape.sharded_tokens; }  // h*u
  // The last of them is no small norm or router: DeepSeek's w3, of the experts shared or of the
  // layer.
  bool ends_with_linear() const { return job.model.is_mla(); }
  // block_weights.cpp: a layer's parameters are tensors of their own: wq, wk, wv, wo, w1, w2, w3
  // (of the experts together, and then the router), the norms, and last Qwen3's of queries and
  // keys.
  std::vector<std::int64_t> layer_weights() const;
  std::vector<std::int64_t> ffn_weights() const;  // or the mixture's
  // Of latent attention: wq_a, its norm and wq_b, or wq; wkv_a, its norm, wkv_b, wo.
  std::vector<std::int64_t> latent_weights() const;
  std::vector<std::int64_t> sink_weights() const;    // of GPT-OSS's attention, with both norms
  std::vector<std::int64_t> expert_weights() const;  // w1, w2, w3 of all experts on the rank, or
                                                     // mlp1 and mlp2, a bias behind each
  std::vector<std::int64_t> sharded_expert_weights() const;  // the same with padded_experts
  bool has_experts() const { return is_moe; }
  // Their parameters are gathered and reduced by themselves (models/llama4/infra/parallelize.py,
  // apply_fsdp).
  bool groups_experts() const { return has_experts() && plan.ep > 1; }
  bool splits_rows() const { return groups_experts() && splits_expert_rows(job, plan); }
  std::int64_t gathered() const { return shape.hidden * shape.tokens; }  // h*T
  std::int64_t ffn_width() const { return div_ceil(job.model.ffn, plan.tp); }
  std::int64_t shared_width() const { return div_ceil(job.model.moe.shared_ffn, plan.tp); }
  bool is_compiled() const { return compiles_layers(job.profile); }
  // A dense block is one graph. Of a mixture attention, router and the experts' products are graphs
  // of their own, which save the same whatever is recomputed.
  bool compiles_blocks() const { return is_compiled() && !has_experts(); }
  bool compiles_parts() const { return is_compiled() && has_experts(); }
  bool compiles_loss() const { return torchtitan::compiles_loss(job.profile); }
  // Gradients of weights within a block: autocast casts each to fp32 as it is made.
  DType weight_gradient() const { return residual(); }
  DType residual() const { return is_autocast() ? DType::kFp32 : shape.dtype; }
  // A buffer of the stream that gathers parameters.
  void gather(std::string_view name, std::int64_t elements, Step born, Step dies,
              std::string_view formula) {
    rows.use_as(Component::kCommunication, name, elements, shape.dtype, born, dies, formula);
    if (elements > 0) {
      rows.rows.back().stream = AllocationStream::kGather;
    }
  }
  // A row that op-level recompute drops and its replay, before the block's backward, writes again.
  void keep_or_write_again(std::string_view name, std::int64_t elements, DType dtype, Life life,
                           std::string_view formula) {
    if (recomputes_ops()) {
      rows.recompute(name, elements, dtype, life, Step::kBackwardOutput, formula);
    } else {
      rows.keep(name, elements, dtype, life, formula);
    }
  }
};

TitanBlock titan_block(const Job& job, const Plan& plan, bool is_moe);
// Whether a layer of that kind has experts: the first of DeepSeek's may have none.
bool is_moe_layer(const Job& job, BlockKind kind);
// The layers of a stage by kind, those with experts apart.
struct TitanLayers {
  TitanBlock block;
  std::int64_t count = 0;
};
std::vector<TitanLayers> titan_layers(const Job& job, const Plan& plan, const StageLayout& stage);

std::vector<BlockRow> block_rows(const Job& job, const Plan& plan, BlockKind kind);
// Ends of chunks, and mixtures behind a layer without one, are kinds of their own.
bool has_own_block(const Job& job, BlockKind kind);

}  // namespace shardplan::torchtitan
