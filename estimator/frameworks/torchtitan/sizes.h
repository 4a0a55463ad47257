// Sizes of the tensors that torchtitan makes, in bytes, as the timeline plays them; letters as in
// block_rows.h.
#pragma once

#include <array>

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/moe.h"

namespace shardplan::torchtitan {

// wq, wk, wv, wo, w1, w2, w3 (of all experts on the rank together), and the experts' router. Of
// latent attention wq_b or wq, wkv_a and wkv_b, and wq_a; w1, w2, w3 of the shared experts. Of
// GPT-OSS's experts mlp1 is kGate and mlp2 kDown, each with a bias.
enum class Weight {
  kQuery,
  kKey,
  kValue,
  kOutput,
  kQueryDown,
  kGate,
  kDown,
  kUp,
  kRouter,
  kSharedGate,
  kSharedDown,
  kSharedUp,
  kGateBias,
  kDownBias
};
inline constexpr std::size_t kNumWeights = 14;

// Multi-head latent attention (models/deepseek_v3), of one microbatch on one rank in bf16.
struct TitanMla {
  explicit TitanMla(const TitanBlock& block);

  bool exists = false;
  bool is_flex = false;             // flex_attention; else scaled_dot_product_attention
  std::int64_t query_down = 0;      // q_lora_rank*T
  std::int64_t query = 0;           // a*(nope+rope)*T, of keys as well
  std::int64_t query_rotary = 0;    // a*rope*T
  std::int64_t key_value_down = 0;  // (kv_lora_rank+rope)*T
  std::int64_t key_value_norm = 0;  // kv_lora_rank*T
  std::int64_t key_rotary = 0;      // rope*T
  std::int64_t key_value = 0;       // a*(nope+v)*T: keys without rotation, and values
  std::int64_t output = 0;          // a*v*T
};

// Of one microbatch on one rank.
struct TitanSizes {
  TitanSizes(const Job& job, const Plan& plan, bool is_moe);
  explicit TitanSizes(const TitanBlock& block);

  bool tensor_parallel = false;
  bool joins_batch = false;  // gathering sequences of several samples copies once more
  bool autocast = false;
  bool keeps_whole_table_gradient = false;  // a pipeline adds it up before rows are picked
  bool norms_query_key = false;             // Qwen 3
  bool turns_halves = false;                // by cosines and sines in bf16: Qwen 3, GPT-OSS
  std::int64_t cp = 1;

  std::int64_t sequence = 0;          // h*u in bf16
  std::int64_t residual = 0;          // h*u of the residual stream: fp32 under autocast
  std::int64_t gathered = 0;          // h*T in bf16
  std::int64_t query = 0;             // a*d*T/t in bf16
  std::int64_t key = 0;               // k*d*T/t in bf16
  std::int64_t ffn = 0;               // f*T/t in bf16
  std::int64_t statistics = 0;        // u in fp32
  std::int64_t log_sum_exp = 0;       // a*T/t in fp32
  std::int64_t query_statistics = 0;  // of the norm of queries, fp32
  std::int64_t key_statistics = 0;
  std::int64_t angles = 0;       // rotations of all tokens, complex64
  std::int64_t cosines = 0;      // of one head in bf16, as many sines
  std::int64_t rotary_cast = 0;  // cosines and sines of the whole sequence, where FSDP casts them
  std::int64_t angle_gradient = 0;   // of one sample's, conjugated
  std::int64_t logits = 0;           // V*T/t in bf16
  std::int64_t table = 0;            // V/t*h in bf16
  std::int64_t whole_table = 0;      // V*h in bf16
  std::int64_t table_workspace = 0;  // of the gradient of a table from many tokens
  std::int64_t workspace = 0;        // cuDNN's backward, whole queries and keys
  std::int64_t half_workspace = 0;   // half the queries over all keys
  std::array<std::int64_t, kNumWeights> weights = {};  // in bf16
  // What the sum of a product's gradient for its bias takes (GPT-OSS's attention).
  std::array<std::int64_t, kNumWeights> bias_sums = {};
  TitanMoe moe;
  TitanMla mla;
  // Whether a checkpoint by operations saves that product's output: every second one in the order
  // of forward, but of those that operators of their own compute.
  std::array<bool, kNumWeights> saves = {};
  bool saves_product(Weight name) const { return saves[static_cast<std::size_t>(name)]; }
  std::int64_t weight(Weight name) const { return weights[static_cast<std::size_t>(name)]; }
  std::int64_t bias_sum(Weight name) const { return bias_sums[static_cast<std::size_t>(name)]; }

 private:
  void set_weights(const TitanBlock& block);
  void set_latent_weights(const TitanBlock& block);
  void set_biased_weights(const TitanBlock& block);
  void set_saved_products();
};

}  // namespace shardplan::torchtitan
