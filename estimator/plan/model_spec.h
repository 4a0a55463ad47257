// The shape of a Llama-family model: everything that decides parameters, activations and FLOPs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

enum class AttentionKind {
  kGqa,  // multi-head and grouped-query attention: num_kv_heads <= num_heads
  kMla,  // multi-head latent attention (DeepSeek-V2/V3)
};

// What can differ from one layer to the next. Layers that compare equal are of one block kind.
struct LayerSpec {
  bool is_moe = false;
  std::int64_t attention_window = 0;  // keys a query sees at most; 0: all before it
  bool attends_in_chunks = false;     // of so many tokens (Llama 4); else within a sliding window
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// Widths of multi-head latent attention; used by models with is_mla, and then instead of head_dim.
struct MlaSpec {
  std::int64_t q_lora_rank = 0;  // 0: plain query projection (DeepSeek-V2-Lite)
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;

  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
};

// Mixture of experts; used by layers with is_moe. num_experts == 0: the model has none.
struct MoeSpec {
  std::int64_t num_experts = 0;
  std::int64_t topk = 0;
  std::int64_t num_groups = 1;   // into which the experts fall; a token's are of
  std::int64_t topk_groups = 1;  // so many of them
  std::int64_t expert_ffn = 0;   // width of one routed expert
  std::int64_t shared_ffn = 0;   // summed width of all shared experts; 0: none
  bool shared_gate = false;      // a [hidden] gate on the shared expert (Qwen2-MoE)
  bool router_bias = false;      // one bias per expert that counts as a parameter
};

struct ModelSpec {
  std::string name;    // preset or file name
  std::string family;  // Hugging Face model_type
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;  // width of a dense FFN (intermediate_size)
  std::int64_t vocab = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;             // num_heads * head_dim need not equal hidden
  std::int64_t max_sequence_length = 0;  // of config.json; 0: not stated. Not a limit.
  bool gated_ffn = true;                 // SwiGLU / GeGLU: gate and up projection
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool ffn_bias = false;
  bool qk_norm = false;                // norms of head_dim on q and on k (Qwen3, Gemma 3)
  bool caps_logits = false;            // a soft cap, by tanh (Gemma 2)
  bool caps_scores = false;            // likewise of attention
  bool layer_norm = false;             // LayerNorm with weight and bias; else RMSNorm with weight
  std::int64_t learned_positions = 0;  // rows of a learned position table (GPT-2); 0: rotary
  std::int64_t norms_per_layer = 2;  // 4 in Gemma 2 and 3 (also after attention and after the FFN)
  AttentionKind attention = AttentionKind::kGqa;
  MlaSpec mla;
  MoeSpec moe;
  std::int64_t num_mtp_layers = 0;  // multi-token prediction modules after the last layer
  std::vector<LayerSpec> layers;    // one per transformer layer, in order

  bool is_mla() const { return attention == AttentionKind::kMla; }

  // Widths of one head: of a query and its key, of a value, of the part with rotary positions.
  std::int64_t qk_head_dim() const { return is_mla() ? mla.qk_head_dim() : head_dim; }
  std::int64_t v_head_dim() const { return is_mla() ? mla.v_head_dim : head_dim; }
  std::int64_t rotary_dim() const { return is_mla() ? mla.qk_rope_head_dim : head_dim; }

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  bool has_moe_layers() const { return std::ranges::any_of(layers, &LayerSpec::is_moe); }
  bool has_dense_layers() const { return !std::ranges::all_of(layers, &LayerSpec::is_moe); }
  // 0: some layer has none.
  std::int64_t longest_attention_window() const {
    std::int64_t longest = 0;
    for (const LayerSpec& layer : layers) {
      if (layer.attention_window == 0) {
        return 0;
      }
      longest = std::max(longest, layer.attention_window);
    }
    return longest;
  }
};

}  // namespace shardplan
