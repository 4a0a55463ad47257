// The kinds of parts that a layer of a language model is made of, and their widths. Families are
// named by Hugging Face's model types; sources: transformers 5.17 models/<family>/
// modeling_<family>.py.
#pragma once

#include <cstdint>

namespace shardplan {

enum class AttentionKind {
  kGqa,        // multi-head and grouped-query attention: num_kv_heads <= num_heads
  kMla,        // multi-head latent attention (DeepSeek-V2/V3)
  kSharedKey,  // one head that is key and value of all queries, within a window and beside it
               // tokens summed up (deepseek_v4)
};

// What mixes the tokens of a layer.
enum class MixerKind : std::uint8_t {
  kAttention,         // softmax attention of the model's AttentionKind
  kGatedDelta,        // gated delta net behind a short convolution (qwen3_next, qwen3_5)
  kKimiDelta,         // Kimi delta attention, a delta rule with a decay a channel (kimi_linear)
  kLightning,         // lightning attention, linear with a fixed decay a head (minimax)
  kMamba1,            // selective state space (jamba)
  kMamba2,            // state space dual (nemotron_h, bamba, granitemoehybrid)
  kShortConvolution,  // gated convolution over a few tokens (lfm2)
  kNone,              // nothing: the layer is an FFN alone (nemotron_h)
};

// Where a layer's attention takes its keys and values from.
enum class KeyValueSource : std::uint8_t {
  kOwn,
  kKeysAreValues,  // one projection makes both (gemma4)
  kEarlierLayer,   // of its kind: the layer has no such projections (gemma3n, gemma4)
};

// What an attention's output is multiplied with, behind a sigmoid.
enum class AttentionGate : std::uint8_t {
  kNone,
  kPerElement,  // as wide as the output; the query projection makes it, too (qwen3_next)
  kPerHead,     // one number a head, of a projection of its own (step3p5)
};

// Between the products of an FFN. With ModelSpec::gated_ffn it acts on the gate.
enum class Activation : std::uint8_t {
  kSilu,
  kGelu,
  kNewGelu,  // GELU by tanh, operator by operator (phi, gptj)
  kRelu,
  kReluSquared,    // nemotron, arcee
  kClampedSwiglu,  // (up + 1) * gate * sigmoid(1.702 gate), both bounded (gpt_oss)
  kXielu,          // with two trained numbers a layer (apertus)
};

// Sizes of one layer's attention; all 0: those of the model.
struct AttentionHeads {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t qk_head_dim = 0;
  std::int64_t v_head_dim = 0;
  friend bool operator==(const AttentionHeads&, const AttentionHeads&) = default;
};

// What can differ from one layer to the next. Layers that compare equal are of one block kind.
struct LayerSpec {
  bool is_moe = false;
  std::int64_t attention_window = 0;  // keys a query sees at most; 0: all before it
  bool attends_in_chunks = false;     // of so many tokens (Llama 4); else within a sliding window
  MixerKind mixer = MixerKind::kAttention;
  bool has_mamba_beside = false;  // a Mamba-2 mixer reads the attention's input, too (falcon_h1)
  bool has_ffn = true;            // false: the layer is its mixer alone (nemotron_h)
  bool has_rotary = true;         // of attention; false: it knows no positions
  bool has_sinks = false;         // one trained score a head beside those of the keys (gpt_oss)
  std::int64_t compression = 0;   // kSharedKey: tokens summed up to one; 0: the window alone
  bool has_indexer = false;       // chooses the keys that attention sees (ModelSpec::indexer)
  KeyValueSource key_values = KeyValueSource::kOwn;
  bool routes_by_hash = false;  // a table says the experts of a token, the router their weights
  std::int64_t ffn = 0;         // width of its dense FFN; 0: ModelSpec::ffn
  AttentionHeads heads = {};    // all 0: the model's
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

// Low ranks of queries and of outputs, these by group of heads; used by models with kSharedKey.
struct SharedKeySpec {
  std::int64_t q_lora_rank = 0;
  std::int64_t output_groups = 0;
  std::int64_t output_rank = 0;  // of each group
};

// A small attention that scores all keys and leaves `topk` of them to the layer's own; used by
// layers with has_indexer.
struct IndexerSpec {
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t topk = 0;        // keys, or blocks of keys
  std::int64_t block_size = 1;  // keys that are chosen together; 1: each for itself
};

// A delta rule over matrices of key by value: the state of each head; used by layers with
// kGatedDelta and kKimiDelta.
struct DeltaSpec {
  std::int64_t key_heads = 0;  // of queries, too
  std::int64_t value_heads = 0;
  std::int64_t key_head_dim = 0;
  std::int64_t value_head_dim = 0;
  std::int64_t convolution = 0;  // tokens that the convolution in front sees

  std::int64_t key_width() const { return key_heads * key_head_dim; }
  std::int64_t value_width() const { return value_heads * value_head_dim; }
};

// State spaces; used by layers with kMamba1, kMamba2 and has_mamba_beside.
struct MambaSpec {
  std::int64_t num_heads = 0;  // Mamba-2; its inner width is num_heads * head_dim
  std::int64_t head_dim = 0;
  std::int64_t inner = 0;        // width of what is mixed
  std::int64_t state = 0;        // numbers kept for each channel
  std::int64_t groups = 1;       // Mamba-2: of heads that share their input and output matrices
  std::int64_t convolution = 0;  // tokens that the convolution in front sees
  std::int64_t chunk = 0;        // Mamba-2: tokens whose scan is one product
  std::int64_t step_rank = 0;    // Mamba-1: of the projection that makes step sizes
  bool convolution_bias = true;
  bool projection_bias = false;
  bool gated_norm = true;    // Mamba-2: a norm of the gated output
  bool inner_norms = false;  // Mamba-1: norms of step sizes and of both matrices (jamba)
};

// A convolution over a few tokens between two products with gates; used by kShortConvolution.
struct ShortConvolutionSpec {
  std::int64_t tokens = 0;
  bool has_bias = false;
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
  bool router_bias = false;      // one bias per expert, which steers the choice alone: counted as a
                                 // parameter, as checkpoints have it (DeepSeek-V3)
  bool biased_router = false;    // the router's product has a trained bias (gpt_oss)
  bool biased_experts = false;   // likewise of the experts' products
  std::int64_t latent = 0;       // width to which tokens are projected for routed experts; 0: none
  // Beside a dense FFN of the same layer, each with a norm behind it and the experts with one in
  // front; the router scales its input by channel and its weights by expert (gemma4).
  bool beside_dense = false;
};

// Embeddings that every layer adds for itself (gemma3n, gemma4); width 0: none.
struct PerLayerEmbeddingSpec {
  std::int64_t vocab = 0;
  std::int64_t width = 0;
};

// Copies of the residual stream that layers predict and correct (gemma3n's AltUp) or mix (the
// hyper-connections of deepseek_v4); 1: none.
struct ResidualStreamsSpec {
  std::int64_t count = 1;
  bool are_hyper_connections = false;
  std::int64_t laurel_rank = 0;  // of a low-rank branch beside attention
};

}  // namespace shardplan
