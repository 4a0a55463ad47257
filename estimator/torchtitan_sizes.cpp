#include "estimator/torchtitan_sizes.h"

#include <algorithm>

#include "estimator/outside_memory.h"
#include "estimator/parameters.h"

namespace shardplan {
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
                                         .head_dim = block.job.model.head_dim},
                                        block.job.profile.deterministic_attention);
}

}  // namespace

std::int64_t table_workspace_bytes(std::int64_t tokens, std::int64_t rows, std::int64_t hidden) {
  constexpr std::int64_t kFewTokens = 3072;
  constexpr std::int64_t kTokensOfPart = 10;
  return tokens <= kFewTokens ? 0
                              : (tokens / kTokensOfPart + std::min(tokens, rows)) * hidden * kFp32;
}

TitanSizes::TitanSizes(const Job& job, const Plan& plan) : TitanSizes(titan_block(job, plan)) {}

TitanSizes::TitanSizes(const TitanBlock& block) : moe(block) {
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
  rotary_cast = norms_query_key && !autocast ? kBf16 * rotary_table_elements(job) : 0;
  angle_gradient = cp > 1 ? angles : kFp32 * job.sequence_length * job.model.head_dim;
  logits = kBf16 * s.local_vocab * s.tokens;
  table = kBf16 * s.local_vocab * s.hidden;
  whole_table = kBf16 * rows * s.hidden;
  table_workspace = table_workspace_bytes(s.tokens, rows, s.hidden);
  workspace = workspace_bytes(block, 1);
  half_workspace = cp > 1 ? workspace_bytes(block, 2) : 0;
  set_weights(block);
}

void TitanSizes::set_weights(const TitanBlock& block) {
  const BlockShape& s = block.shape;
  const auto set = [this](Weight weight, std::int64_t elements) {
    weights[static_cast<std::size_t>(weight)] = kBf16 * elements;
  };
  set(Weight::kQuery, s.hidden * s.query_width);
  set(Weight::kKey, s.hidden * s.key_value_width);
  set(Weight::kValue, s.hidden * s.key_value_width);
  set(Weight::kOutput, s.hidden * s.query_width);
  const std::int64_t width =
      moe.exists ? block.expert_weights().front() : s.hidden * block.ffn_width();
  for (const Weight weight : {Weight::kGate, Weight::kDown, Weight::kUp}) { set(weight, width); }
  set(Weight::kRouter, moe.exists ? s.hidden * block.job.model.moe.num_experts : 0);
}

}  // namespace shardplan
