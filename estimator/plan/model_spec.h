// The shape of a language model: everything that decides parameters, activations and FLOPs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/layer_spec.h"
#include "estimator/plan/tower_spec.h"

namespace shardplan {

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
  Activation activation = Activation::kSilu;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool ffn_bias = false;
  bool head_bias = false;
  AttentionGate attention_gate = AttentionGate::kNone;
  double rotary_share = 1;       // of a head, that is turned by rotary positions
  bool qk_norm = false;          // norms of head_dim on q and on k (Qwen3, Gemma 3)
  bool norms_all_heads = false;  // with qk_norm: norms of all heads at once (OLMo 2)
  bool caps_logits = false;      // a soft cap, by tanh (Gemma 2)
  bool caps_scores = false;      // likewise of attention
  bool clips_qkv = false;        // queries, keys and values are bounded (DBRX)
  // Scores are shifted by the distance of query and key, by a slope a head, in place of positions
  // (MPT; arXiv 2108.12409).
  bool has_alibi = false;
  bool layer_norm = false;             // LayerNorm with weight and bias; else RMSNorm with weight
  bool norm_bias = true;               // false: LayerNorms have no bias (Cohere)
  bool qk_norm_bias = true;            // false: those of queries and keys have none (StableLM 2)
  bool norm_weights = true;            // false: norms have no parameters (OLMo of 2024)
  std::int64_t learned_positions = 0;  // rows of a learned position table (GPT-2); 0: rotary
  // 4 in Gemma 2 and 3 (also after attention and after the FFN); 1 where attention and FFN read the
  // same normalised input (parallel_ffn), and where a layer has but one of them (Nemotron-H).
  std::int64_t norms_per_layer = 2;
  bool norms_after = false;   // both stand after attention and FFN, none before (OLMo 2)
  bool parallel_ffn = false;  // attention and FFN read the layer's input and are added together
  AttentionKind attention = AttentionKind::kGqa;
  MlaSpec mla;
  SharedKeySpec shared_key;
  IndexerSpec indexer;
  DeltaSpec delta;
  MambaSpec mamba;
  ShortConvolutionSpec short_convolution;
  MoeSpec moe;
  PerLayerEmbeddingSpec per_layer_embedding;
  ResidualStreamsSpec residual_streams;
  std::int64_t num_mtp_layers = 0;  // multi-token prediction modules after the last layer
  std::vector<LayerSpec> layers;    // one per transformer layer, in order
  TowerSpec tower;                  // beside the text model, where its sizes are stated

  bool is_mla() const { return attention == AttentionKind::kMla; }

  // Widths of one head: of a query and its key, of a value, of the part with rotary positions.
  std::int64_t qk_head_dim() const { return is_mla() ? mla.qk_head_dim() : head_dim; }
  std::int64_t v_head_dim() const { return is_mla() ? mla.v_head_dim : head_dim; }
  std::int64_t rotary_dim() const { return is_mla() ? mla.qk_rope_head_dim : head_dim; }

  // The sizes of one layer's attention: its own, or the model's.
  AttentionHeads heads_of(const LayerSpec& layer) const {
    return layer.heads != AttentionHeads{} ? layer.heads
                                           : AttentionHeads{.num_heads = num_heads,
                                                            .num_kv_heads = num_kv_heads,
                                                            .qk_head_dim = qk_head_dim(),
                                                            .v_head_dim = v_head_dim()};
  }
  std::int64_t ffn_of(const LayerSpec& layer) const { return layer.ffn > 0 ? layer.ffn : ffn; }

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
