// The tensors that a torchtitan block's parameters are.
#include "estimator/frameworks/torchtitan/blocks.h"

#include "estimator/frameworks/torchtitan/parameters.h"

namespace shardplan::torchtitan {

std::vector<std::int64_t> TitanBlock::latent_weights() const {
  const MlaSpec& mla = job.model.mla;
  const std::int64_t heads = job.model.num_heads;
  const std::int64_t query = heads * mla.qk_head_dim();
  std::vector<std::int64_t> weights;
  if (mla.q_lora_rank > 0) {
    weights = {shape.hidden * mla.q_lora_rank, mla.q_lora_rank, mla.q_lora_rank * query};
  } else {
    weights = {shape.hidden * query};
  }
  weights.insert(weights.end(),
                 {shape.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim), mla.kv_lora_rank,
                  mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim),
                  heads * mla.v_head_dim * shape.hidden});
  return weights;
}

std::vector<std::int64_t> TitanBlock::ffn_weights() const {
  if (!has_experts()) {
    return std::vector<std::int64_t>(3, shape.hidden * ffn_width());
  }
  std::vector<std::int64_t> weights;
  if (!groups_experts()) {
    weights = sharded_expert_weights();
  }
  weights.push_back(shape.hidden * job.model.moe.num_experts);
  if (is_gpt_oss()) {
    weights.push_back(job.model.moe.num_experts);
  }
  weights.insert(weights.end(), shared_width() > 0 ? 3 : 0, shape.hidden * shared_width());
  return weights;
}

// models/gpt_oss/model/model.py, Attention: sinks, and every product's weight and bias; the norms.
std::vector<std::int64_t> TitanBlock::sink_weights() const {
  const std::int64_t query = shape.query_width;
  const std::int64_t key = shape.key_value_width;
  return {shape.query_heads,
          shape.hidden * query,
          query,
          shape.hidden * key,
          key,
          shape.hidden * key,
          key,
          shape.hidden * query,
          shape.hidden,
          shape.hidden,
          shape.hidden};
}

// DeepSeek's blocks have their norms before what follows them, GPT-OSS's likewise.
std::vector<std::int64_t> TitanBlock::layer_weights() const {
  const std::vector<std::int64_t> ffn = ffn_weights();
  if (job.model.is_mla()) {
    std::vector<std::int64_t> weights = latent_weights();
    weights.insert(weights.end(), 2, shape.hidden);
    weights.insert(weights.end(), ffn.begin(), ffn.end());
    return weights;
  }
  if (is_gpt_oss()) {
    std::vector<std::int64_t> weights = sink_weights();
    weights.insert(weights.end(), ffn.begin(), ffn.end());
    return weights;
  }
  const std::int64_t query = shape.hidden * shape.query_width;
  const std::int64_t key = shape.hidden * shape.key_value_width;
  std::vector<std::int64_t> weights = {query, key, key, query};
  weights.insert(weights.end(), ffn.begin(), ffn.end());
  weights.insert(weights.end(), 2, shape.hidden);
  if (job.model.qk_norm) {
    weights.insert(weights.end(), 2, job.model.head_dim);
  }
  return weights;
}

std::vector<std::int64_t> TitanBlock::sharded_expert_weights() const {
  std::vector<std::int64_t> weights = expert_weights();
  for (std::int64_t& weight : weights) { weight = padded_experts(job, plan, weight); }
  return weights;
}

std::vector<std::int64_t> TitanBlock::expert_weights() const {
  const MoeSpec& moe = job.model.moe;
  const std::int64_t experts = div_ceil(moe.num_experts, plan.ep);
  const std::int64_t inner = experts * div_ceil(moe.expert_ffn, plan.etp);
  const std::int64_t width = inner * shape.hidden;
  if (is_gpt_oss()) {  // the second bias is whole on every rank (infra/expert_parallel.py)
    return {2 * width, 2 * inner, width, experts * shape.hidden};
  }
  return {width, width, width};
}

}  // namespace shardplan::torchtitan
