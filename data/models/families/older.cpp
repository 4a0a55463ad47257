// Defaults and shapes: huggingface/transformers 5.17, models/gpt_neox, configuration_gpt_neox.py
// and modeling_gpt_neox.py.
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

constexpr std::array kRows = std::to_array<ModelFamily>({
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
