#include "estimator/frameworks/torchtitan/sizes.h"

#include "estimator/frameworks/pieces/attention_workspace.h"
#include "estimator/frameworks/pieces/eager/reduction.h"
#include "estimator/frameworks/pieces/table_gradient.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kBf16 = 2;
constexpr std::int64_t kFp32 = 4;

std::int64_t workspace_bytes(const TitanBlock& block, std::int64_t query_parts) {
  const std::int64_t length = div_ceil(block.job.sequence_length, block.plan.cp);
  return cudnn_backward_workspace_bytes({.batch = block.plan.micro_batch,
                                         .query_heads = block.shape.query_heads,
                                         .kv_heads = block.shape.key_value_heads,
                                         .query_length = length / query_parts,
                                         .kv_length = length,
                                         .head_dim = block.job.model.qk_head_dim()},
                                        block.job.profile.deterministic_attention);
}

}  // namespace

TitanSizes::TitanSizes(const Job& job, const Plan& plan, bool is_moe)
    : TitanSizes(titan_block(job, plan, is_moe)) {}

TitanMla::TitanMla(const TitanBlock& block) {
  const ModelSpec& model = block.job.model;
  const MlaSpec& of = model.mla;
  exists = model.is_mla();
  if (!exists) {
    return;
  }
  is_flex = block.job.profile.attention_backend == AttentionBackend::kFlex;
  const std::int64_t tokens = block.shape.tokens;
  const std::int64_t heads = model.num_heads * tokens;
  query_down = kBf16 * of.q_lora_rank * tokens;
  query = kBf16 * of.qk_head_dim() * heads;
  query_rotary = kBf16 * of.qk_rope_head_dim * heads;
  key_value_down = kBf16 * (of.kv_lora_rank + of.qk_rope_head_dim) * tokens;
  key_value_norm = kBf16 * of.kv_lora_rank * tokens;
  key_rotary = kBf16 * of.qk_rope_head_dim * tokens;
  key_value = kBf16 * (of.qk_nope_head_dim + of.v_head_dim) * heads;
  output = kBf16 * of.v_head_dim * heads;
}

TitanSizes::TitanSizes(const TitanBlock& block) : moe(block), mla(block) {
  const Job& job = block.job;
  const Plan& plan = block.plan;
  const BlockShape& s = block.shape;
  tensor_parallel = s.gathers_sequence;
  joins_batch = plan.micro_batch > 1;
  autocast = block.is_autocast();
  keeps_whole_table_gradient = plan.pp > 1;
  cp = plan.cp;
  const std::int64_t rows = padded_vocab(job, plan);
  sequence = kBf16 * block.sequence();
  residual = autocast ? 2 * sequence : sequence;
  gathered = kBf16 * block.gathered();
  query = kBf16 * s.query_width * s.tokens;
  key = kBf16 * s.key_value_width * s.tokens;
  ffn = kBf16 * block.ffn_width() * s.tokens;
  statistics = kFp32 * s.sharded_tokens;
  log_sum_exp = kFp32 * s.query_heads * s.tokens;
  norms_query_key = block.norms_query_key();
  query_statistics = kFp32 * s.query_heads * s.tokens;
  key_statistics = kFp32 * s.key_value_heads * s.tokens;
  angles = kFp32 * s.tokens * job.model.head_dim;
  cosines = kBf16 * (cp > 1 ? s.tokens : job.sequence_length) * job.model.head_dim;
  turns_halves = block.turns_halves();
  rotary_cast = turns_halves && !autocast ? kBf16 * rotary_table_elements(job) : 0;
  angle_gradient = cp > 1 ? angles : kFp32 * job.sequence_length * job.model.head_dim;
  logits = kBf16 * s.local_vocab * s.tokens;
  table = kBf16 * s.local_vocab * s.hidden;
  whole_table = kBf16 * rows * s.hidden;
  table_workspace = table_workspace_bytes(s.tokens, rows, s.hidden);
  workspace = workspace_bytes(block, 1);
  half_workspace = cp > 1 ? workspace_bytes(block, 2) : 0;
  set_weights(block);
  if (block.is_gpt_oss()) {
    set_biased_weights(block);
  } else {
    set_saved_products();
  }
}

// The checkpoint's policy counts products of matrices (distributed/activation_checkpoint.py,
// _apply_op_sac). In DeepSeek's and Llama 4's mixtures that of the router is not among them, as
// traces show, in Qwen 3's it is the fifth.
void TitanSizes::set_saved_products() {
  using enum Weight;
  const std::vector<Weight> of_mixture = {kQueryDown, kQuery, kKey, kValue, kOutput, kRouter};
  const std::vector<Weight> of_shared = {kQueryDown, kQuery,      kKey,      kValue,
                                         kOutput,    kSharedGate, kSharedUp, kSharedDown};
  const std::vector<Weight> of_dense = {kQueryDown, kQuery, kKey, kValue,
                                        kOutput,    kGate,  kUp,  kDown};
  const bool forgets_router = mla.exists || moe.scores_rows_first;
  const std::vector<Weight>& order = !moe.exists      ? of_dense
                                     : forgets_router ? of_shared
                                                      : of_mixture;
  const std::size_t first = mla.query_down > 0 ? 0 : 1;
  for (std::size_t at = first; at < order.size(); at += 2) {
    saves[static_cast<std::size_t>(order[at])] = true;
  }
}

// Widths that tp does not divide: latent attention runs on tp 1.
void TitanSizes::set_latent_weights(const TitanBlock& block) {
  const ModelSpec& model = block.job.model;
  const std::vector<std::int64_t> elements = block.latent_weights();
  std::size_t at = 0;
  const auto set = [&](Weight weight) {
    weights[static_cast<std::size_t>(weight)] = kBf16 * elements[at++];
  };
  if (model.mla.q_lora_rank > 0) {
    set(Weight::kQueryDown);
    ++at;  // its norm
  }
  set(Weight::kQuery);
  set(Weight::kKey);
  ++at;
  set(Weight::kValue);
  set(Weight::kOutput);
}

// Products with a bias are addmm, of which a checkpoint by operations saves none
// (models/gpt_oss/infra/parallelize.py, _op_sac_save_list).
void TitanSizes::set_biased_weights(const TitanBlock& block) {
  const std::vector<std::int64_t> experts = block.expert_weights();
  std::size_t at = 0;
  for (const Weight weight : {Weight::kGate, Weight::kGateBias, Weight::kDown, Weight::kDownBias}) {
    weights[static_cast<std::size_t>(weight)] = kBf16 * experts[at++];
  }
  weights[static_cast<std::size_t>(Weight::kUp)] = 0;
  const BlockShape& s = block.shape;
  const auto set_sum = [&](Weight weight, std::int64_t width) {
    bias_sums[static_cast<std::size_t>(weight)] =
        eager::column_sum_bytes(s.tokens, width, block.job.cluster.gpu.num_sms);
  };
  set_sum(Weight::kQuery, s.query_width);
  set_sum(Weight::kKey, s.key_value_width);
  set_sum(Weight::kValue, s.key_value_width);
  set_sum(Weight::kOutput, s.hidden);
}

void TitanSizes::set_weights(const TitanBlock& block) {
  const BlockShape& s = block.shape;
  const auto set = [this](Weight weight, std::int64_t elements) {
    weights[static_cast<std::size_t>(weight)] = kBf16 * elements;
  };
  if (mla.exists) {
    set_latent_weights(block);
  } else {
    set(Weight::kQuery, s.hidden * s.query_width);
    set(Weight::kKey, s.hidden * s.key_value_width);
    set(Weight::kValue, s.hidden * s.key_value_width);
    set(Weight::kOutput, s.hidden * s.query_width);
  }
  const std::int64_t width =
      moe.exists ? block.expert_weights().front() : s.hidden * block.ffn_width();
  for (const Weight weight : {Weight::kGate, Weight::kDown, Weight::kUp}) { set(weight, width); }
  for (const Weight weight : {Weight::kSharedGate, Weight::kSharedDown, Weight::kSharedUp}) {
    set(weight, moe.exists ? s.hidden * block.shared_width() : 0);
  }
  set(Weight::kRouter, moe.exists ? s.hidden * block.job.model.moe.num_experts : 0);
}

}  // namespace shardplan::torchtitan
