// Core attention of a Megatron layer: what it takes, and its rows.
#pragma once

#include <cstdint>

#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

struct AttentionWidths {  // per token on one tp rank
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t value = 0;
  std::int64_t output = 0;
  std::int64_t head_dim = 0;  // of queries and keys
  std::int64_t gate = 0;      // of the output, which the product of queries makes, too
  std::int64_t qkv() const { return query + key + value; }
  std::int64_t packed() const { return qkv() + gate; }
};

AttentionWidths attention_widths(const MegatronBlock& block);

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

void add_te_attention(MegatronBlock& block);

}  // namespace shardplan::megatron
