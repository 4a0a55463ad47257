// Defaults and shapes: huggingface/transformers 5.17, models/gpt_neox, gpt2, gptj, falcon, mpt and
// dbrx, configuration_<family>.py and modeling_<family>.py.
#include "data/models/families/older.h"

#include <array>

#include "data/models/config_keys.h"

namespace shardplan {
namespace {

constexpr std::array kNeoxKeys =
    std::to_array<std::string_view>({"classifier_dropout", "hidden_dropout", "layer_norm_eps",
                                     "rotary_emb_base", "use_parallel_residual"});

// Attention and FFN are added together, each behind a norm of its own, unless a file says that they
// follow one another.
void read_neox_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  reading.model.parallel_ffn = fields.boolean_or("use_parallel_residual", true);
  reading.model.rotary_share = fields.number_or("rotary_pct", reading.model.rotary_share, 0, 1);
}

constexpr std::array kFalconKeys = std::to_array<std::string_view>(
    {"apply_residual_connection_post_layernorm", "attention_dropout", "hidden_dropout",
     "layer_norm_epsilon", "num_ln_in_parallel_attn", "parallel_attn"});

// Heads of keys of the newer architecture; of the older one all queries have one, or each its own.
std::int64_t falcon_key_heads(ConfigReading& reading, bool is_new) {
  ObjectReader& fields = reading.fields;
  const std::int64_t heads = reading.model.num_heads;
  const bool shares_one = fields.boolean_or("multi_query", true);
  const std::int64_t given = fields.integer_or("num_kv_heads", heads, 1, kMaxHeads);
  if (!is_new) {
    return shares_one ? 1 : heads;
  }
  if (given == 1 || heads % given != 0) {
    throw fields.error("num_kv_heads", "found " + std::to_string(given) +
                                           ", expected a divisor of num_attention_heads = " +
                                           std::to_string(heads) + " above 1");
  }
  return given;
}

// The newer architecture (Falcon 40B) always has attention and FFN side by side, behind two norms
// unless a file says one.
void read_falcon_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  const bool is_new = fields.boolean_or("new_decoder_architecture", false);
  model.ffn = fields.integer_or("ffn_hidden_size", 4 * model.hidden, 1, kMaxFfn);
  model.num_kv_heads = falcon_key_heads(reading, is_new);
  model.parallel_ffn = is_new || fields.boolean_or("parallel_attn", true);
  const std::int64_t of_class = is_new ? 2 : 1;
  const std::int64_t norms = fields.is_null("num_ln_in_parallel_attn")
                                 ? of_class
                                 : fields.integer_or("num_ln_in_parallel_attn", of_class, 1, 2);
  model.norms_per_layer = model.parallel_ffn ? norms : 2;
  model.qkv_bias = fields.boolean_or("bias", false);
  model.attention_output_bias = model.qkv_bias;
  model.ffn_bias = model.qkv_bias;
  model.has_alibi = fields.boolean_or("alibi", false);
  for (LayerSpec& layer : model.layers) { layer.has_rotary = !model.has_alibi; }
  if (!is_new && model.num_kv_heads > 1 && !model.has_alibi) {
    throw fields.error("multi_query",
                       "found false, expected true, alibi or new_decoder_architecture: no "
                       "published model has rotary positions and a key for every query");
  }
}

constexpr std::array kGpt2OwnKeys = std::to_array<OwnKey>({
    {.usual = "hidden_size", .own = "n_embd"},
    {.usual = "num_attention_heads", .own = "n_head"},
    {.usual = "num_hidden_layers", .own = "n_layer"},
    {.usual = "max_position_embeddings", .own = "n_positions"},
});
constexpr std::array kGpt2Keys = std::to_array<std::string_view>(
    {"layer_norm_epsilon", "n_ctx", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx",
     "scale_attn_weights", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
     "summary_type", "summary_use_proj"});

// The class drops a tenth where a file does not say otherwise.
void read_gpt2_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  model.ffn = fields.is_null("n_inner")
                  ? 4 * model.hidden
                  : fields.integer_or("n_inner", 4 * model.hidden, 1, kMaxFfn);
  fields.ignore("n_inner");
  for (const std::string_view key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) {
    if (const double share = fields.number_or(key, 0.1, 0, 1); share > 0) {
      reading.warn(key,
                   (fields.has(key) ? "found " + describe(fields.value(key))
                                    : std::string("found nothing, which is 0.1 to the class")) +
                       ": masks of dropout are not counted, those of 0 have no bytes");
    }
  }
  model.learned_positions =
      fields.integer_or(reading.named("max_position_embeddings"), 1024, 1, std::int64_t{1} << 24);
  for (LayerSpec& layer : model.layers) { layer.has_rotary = false; }
}

constexpr std::array kGptjKeys = std::to_array<std::string_view>(
    {"attn_pdrop", "embd_pdrop", "gradient_checkpointing", "layer_norm_epsilon", "n_ctx",
     "resid_pdrop", "rotary", "scale_attn_weights", "summary_activation", "summary_first_dropout",
     "summary_proj_to_labels", "summary_type", "summary_use_proj"});

void read_gptj_parts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  ModelSpec& model = reading.model;
  model.ffn = fields.is_null("n_inner")
                  ? 4 * model.hidden
                  : fields.integer_or("n_inner", 4 * model.hidden, 1, kMaxFfn);
  fields.ignore("n_inner");
  const std::int64_t turned = fields.is_null("rotary_dim")
                                  ? model.head_dim
                                  : fields.integer_or("rotary_dim", 64, 1, model.head_dim);
  fields.ignore("rotary_dim");
  model.rotary_share = static_cast<double>(turned) / static_cast<double>(model.head_dim);
}

constexpr std::array kMosaicOwnKeys = std::to_array<OwnKey>({
    {.usual = "hidden_size", .own = "d_model"},
    {.usual = "num_attention_heads", .own = "n_heads"},
    {.usual = "num_hidden_layers", .own = "n_layers"},
    {.usual = "max_position_embeddings", .own = "max_seq_len"},
});
constexpr std::array kMosaicKeys = std::to_array<std::string_view>(
    {"emb_pdrop", "embedding_fraction", "expansion_ratio", "init_config", "init_device",
     "layer_norm_epsilon", "learned_pos_emb", "logit_scale", "no_bias", "norm_type", "resid_pdrop",
     "tokenizer_name", "verbose"});

// Reads attn_config's bounds of queries, keys and values, its heads of keys and its ALiBi.
void read_mosaic_attention(ConfigReading& reading, bool has_alibi) {
  ModelSpec& model = reading.model;
  const std::string_view key = "attn_config";
  model.has_alibi = has_alibi;
  if (is_given(reading, key)) {
    ObjectReader inner(reading.fields.value(key), reading.file);
    model.clips_qkv = inner.has("clip_qkv") && !inner.is_null("clip_qkv");
    model.num_kv_heads = inner.integer_or("kv_n_heads", model.num_kv_heads, 1, model.num_heads);
    model.has_alibi = has_alibi && inner.boolean_or("alibi", true);
  }
  reading.fields.ignore(key);
}

// The class has the FFN four times as wide, whatever expansion_ratio says.
void read_mpt_parts(ConfigReading& reading) {
  reading.model.ffn = 4 * reading.model.hidden;
  read_mosaic_attention(reading, true);
  for (LayerSpec& layer : reading.model.layers) { layer.has_rotary = false; }
}

void read_dbrx_parts(ConfigReading& reading) {
  ModelSpec& model = reading.model;
  const std::string_view key = "ffn_config";
  model.num_kv_heads = 1;  // of the class
  read_mosaic_attention(reading, false);
  model.moe = reading.family.moe;
  if (is_given(reading, key)) {
    ObjectReader inner(reading.fields.value(key), reading.file);
    model.moe.num_experts = inner.integer_or("moe_num_experts", 4, 1, kMaxExperts);
    model.moe.topk = inner.integer_or("moe_top_k", 1, 1, model.moe.num_experts);
    model.moe.expert_ffn = inner.integer_or("ffn_hidden_size", 3584, 1, kMaxFfn);
  }
  reading.fields.ignore(key);
  model.ffn = model.moe.expert_ffn;
  for (LayerSpec& layer : model.layers) { layer.is_moe = true; }
}

constexpr std::array kRows = std::to_array<ModelFamily>({
    {.model_type = "dbrx",
     .own_keys = kMosaicOwnKeys,
     .needs_no_ffn = true,
     .moe = {.num_experts = 4, .topk = 1, .expert_ffn = 3584},
     .layer_norm = true,
     .norm_bias = false,
     .read_own_parts = read_dbrx_parts,
     .without_effect = kMosaicKeys},
    {.model_type = "gptj",
     .own_keys = kGpt2OwnKeys,
     .needs_no_ffn = true,
     .gated_ffn = false,
     .activation = Activation::kNewGelu,
     .activation_key = "activation_function",
     .ffn_bias = true,
     .has_head_bias = true,
     .norms_per_layer = 1,
     .parallel_ffn = true,
     .layer_norm = true,
     .read_own_parts = read_gptj_parts,
     .without_effect = kGptjKeys},
    {.model_type = "mpt",
     .own_keys = kMosaicOwnKeys,
     .needs_no_ffn = true,
     .tied_embeddings = true,
     .gated_ffn = false,
     .activation = Activation::kGelu,
     .layer_norm = true,
     .norm_bias = false,
     .read_own_parts = read_mpt_parts,
     .without_effect = kMosaicKeys},
    {.model_type = "gpt2",
     .own_keys = kGpt2OwnKeys,
     .needs_no_ffn = true,
     .tied_embeddings = true,
     .gated_ffn = false,
     .activation = Activation::kNewGelu,
     .activation_key = "activation_function",
     .ffn_bias = true,
     .layer_norm = true,
     .bias = AttentionBias::kAlways,
     .read_own_parts = read_gpt2_parts,
     .without_effect = kGpt2Keys},
    {.model_type = "falcon",
     .needs_no_ffn = true,
     .tied_embeddings = true,
     .gated_ffn = false,
     .activation = Activation::kGelu,
     .activation_key = "activation",
     .layer_norm = true,
     .read_own_parts = read_falcon_parts,
     .without_effect = kFalconKeys},
    {.model_type = "gpt_neox",
     .rotary_share = 0.25,
     .gated_ffn = false,
     .activation = Activation::kGelu,
     .activation_key = "hidden_act",
     .ffn_bias = true,
     .attention_bias = true,
     .layer_norm = true,
     .bias = AttentionBias::kByKey,
     .read_own_parts = read_neox_parts,
     .without_effect = kNeoxKeys},
});

}  // namespace

std::span<const ModelFamily> older_families() {
  return kRows;
}

}  // namespace shardplan
