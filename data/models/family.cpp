#include "data/models/family.h"

#include <algorithm>
#include <array>
#include <vector>

#include "data/models/families/dense.h"
#include "data/models/families/established.h"
#include "data/models/families/gemmas.h"
#include "data/models/families/hybrids.h"
#include "data/models/families/latent.h"
#include "data/models/families/mixtures.h"
#include "data/models/families/older.h"
#include "data/models/families/pruned.h"
#include "data/models/families/uneven_mixtures.h"

namespace shardplan {

namespace {

constexpr std::array kCommonKeys = std::to_array<std::string_view>({
    // Names and versions.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "attention_implementation",
    "name_or_path",
    "tokenizer_class",
    "transformers.js_config",
    "transformers_version",
    "trust_remote_code",
    "unsloth_fixed",
    "unsloth_version",
    // Tokens.
    "begin_suppress_tokens",
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
    "prefix",
    "sep_token_id",
    "suppress_tokens",
    "unk_token_id",
    // Numerics: no tensor of its own.
    "attention_dropout",
    "hidden_act",
    "hidden_activation",
    "initializer_range",
    "pretraining_tp",
    "rms_norm_eps",
    // Rotary position embeddings: buffers of [sequence, head_dim], not parameters.
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    // Generation, other tasks, output switches of PretrainedConfig.
    "add_cross_attention",
    "bad_words_ids",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "top_k",
    "top_p",
    "torchscript",
    "typical_p",
    "use_bfloat16",
    "use_cache",
});

}  // namespace

void ConfigReading::warn(std::string_view key, const std::string& text) {
  warnings.emplace_back(fields.error(key, text).what());
}

std::string_view ConfigReading::named(std::string_view usual) const {
  for (const OwnKey& key : family.own_keys) {
    if (key.usual == usual && fields.has(key.own)) {
      return key.own;
    }
  }
  return usual;
}

std::span<const ModelFamily> model_families() {
  static const std::vector<ModelFamily> all = [] {
    std::vector<ModelFamily> families;
    for (const auto& rows : {established_families(), dense_families(), mixture_families(),
                             uneven_mixture_families(), latent_families(), hybrid_families(),
                             later_gemma_families(), pruned_families(), older_families()}) {
      families.insert(families.end(), rows.begin(), rows.end());
    }
    return families;
  }();
  return all;
}

std::span<const std::string_view> keys_without_effect() {
  return kCommonKeys;
}

}  // namespace shardplan
