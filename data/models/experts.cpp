// Sources: huggingface/transformers 4.57.1 and 5.17, models/<family>/configuration_<family>.py and
// modeling_<family>.py.
#include "data/models/experts.h"

#include <algorithm>
#include <array>
#include <optional>

#include "data/models/config.h"
#include "data/models/config_keys.h"
#include "data/read/count_word.h"

namespace shardplan {
namespace {

std::int64_t num_experts(ConfigReading& reading) {
  constexpr std::array kNames = std::to_array<std::string_view>(
      {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"});
  const std::optional<std::int64_t> found = aliased(reading, kNames, kMaxExperts);
  return found ? *found
               : class_default(reading, reading.family.num_experts_key,
                               reading.family.moe.num_experts, kMaxExperts);
}

// Experts of a token; Hunyuan's files list one number a layer.
std::int64_t topk(ConfigReading& reading) {
  constexpr std::array kNames = std::to_array<std::string_view>(
      {"num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k"});
  std::string_view key = kNames.front();
  std::optional<std::int64_t> found;
  for (const std::string_view name : kNames) {
    if (is_given(reading, name)) {
      key = name;
      found = same_in_all_layers(reading, name, 1, kMaxExperts);
    } else {
      reading.fields.ignore(name);
    }
  }
  if (!found) {
    found = reading.family.moe.topk == 0
                ? reading.fields.integer(key, 1, kMaxExperts)
                : class_default(reading, key, reading.family.moe.topk, kMaxExperts);
  }
  const std::int64_t num_experts = reading.model.moe.num_experts;
  if (*found > num_experts) {
    throw reading.fields.error(key, "found " + std::to_string(*found) + ", expected at most the " +
                                        std::to_string(num_experts) + " experts");
  }
  return *found;
}

// Groups of experts, of which a token's experts are of some.
void read_groups(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const MoeSpec& absent = reading.family.moe;
  moe.num_groups = integer_or_null(reading, "n_group", 1, absent.num_groups, kMaxExperts);
  moe.topk_groups = integer_or_null(reading, "topk_group", 1, absent.topk_groups, kMaxExperts);
  if (moe.num_experts % moe.num_groups != 0) {
    throw reading.fields.error("n_group", "found " + std::to_string(moe.num_groups) +
                                              ", expected a divisor of the " +
                                              std::to_string(moe.num_experts) + " experts");
  }
  const std::int64_t eligible = moe.num_experts / moe.num_groups * moe.topk_groups;
  if (moe.topk_groups > moe.num_groups || moe.topk > eligible) {
    throw reading.fields.error(
        "topk_group", "found " + std::to_string(moe.topk_groups) + " of " +
                          std::to_string(moe.num_groups) + " groups of experts, expected at most " +
                          "all of them, with the " + std::to_string(moe.topk) + " of a token");
  }
}

std::int64_t expert_ffn(ConfigReading& reading) {
  const std::string_view key = reading.named("moe_intermediate_size");
  return is_given(reading, key)
             ? same_in_all_layers(reading, key, 1, kMaxFfn)
             : class_default(reading, key, reading.family.moe.expert_ffn, kMaxFfn);
}

void mark_moe(ModelSpec& model, std::int64_t layer) {
  model.layers[static_cast<std::size_t>(layer)].is_moe = true;
}

// What a family's experts have in every model of it.
void take_biases(ConfigReading& reading) {
  const MoeSpec& family = reading.family.moe;
  MoeSpec& moe = reading.model.moe;
  moe.router_bias = family.router_bias;
  moe.biased_router = family.biased_router;
  moe.biased_experts = family.biased_experts;
}

void read_prediction_modules(ConfigReading& reading) {
  constexpr std::array kNames =
      std::to_array<std::string_view>({"num_nextn_predict_layers", "num_mtp_layers"});
  reading.model.num_mtp_layers = aliased(reading, kNames, kMaxMtpLayers).value_or(0);
}

// True if mlp_layer_types is there; it then decides alone which layers have experts.
bool mark_by_mlp_layer_types(ConfigReading& reading) {
  const auto types = words_by_layer(reading, "mlp_layer_types");
  if (!types) {
    return false;
  }
  for (std::size_t i = 0; i < types->size(); ++i) {
    if ((*types)[i] != "dense" && (*types)[i] != "sparse") {
      throw unknown_word(reading, "mlp_layer_types", (*types)[i], "dense or sparse");
    }
    reading.model.layers[i].is_moe = (*types)[i] == "sparse";
  }
  return true;
}

// True if moe_layer_freq is a list, which has a 1 for layers with experts.
bool mark_by_frequencies(ConfigReading& reading) {
  const std::string_view key = "moe_layer_freq";
  ObjectReader& fields = reading.fields;
  if (!fields.has(key) || fields.value(key).kind != JsonKind::kArray) {
    return false;
  }
  const auto marked = numbers_by_layer(reading, key, 0, 1);
  for (std::size_t i = 0; i < marked->size(); ++i) {
    reading.model.layers[i].is_moe = (*marked)[i] == 1;
  }
  return true;
}

// Layers after the first first_k_dense_replace ones, every moe_layer_freq-th.
void mark_after_dense(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  const std::int64_t num_layers = reading.model.num_layers();
  const std::int64_t first =
      fields.integer_or("first_k_dense_replace", reading.family.num_first_dense, 0, num_layers);
  if (mark_by_mlp_layer_types(reading)) {
    return fields.ignore("moe_layer_freq");
  }
  if (mark_by_frequencies(reading)) {
    return;
  }
  const std::int64_t step = fields.integer_or("moe_layer_freq", 1, 1, num_layers);
  for (std::int64_t i = 0; i < num_layers; ++i) {
    if (i >= first && i % step == 0) {
      mark_moe(reading.model, i);
    }
  }
}

}  // namespace

void mark_by_lists(ConfigReading& reading) {
  if (!mark_by_mlp_layer_types(reading)) {
    mark_by_frequencies(reading);
  }
  reading.fields.ignore("moe_layer_freq");
}

void read_routed(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  take_biases(reading);
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  moe.expert_ffn = expert_ffn(reading);
}

// intermediate_size is the width of an expert; every layer has experts.
void read_mixtral_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  take_biases(reading);
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  moe.expert_ffn = reading.model.ffn;
  moe.router_bias = moe.router_bias && reading.fields.boolean_or("use_routing_bias", true);
  moe.shared_ffn = integer_or_null(reading, "shared_intermediate_size", 0, 0, kMaxFfn);
  for (LayerSpec& layer : reading.model.layers) { layer.is_moe = true; }
}

void read_granite_experts(ConfigReading& reading) {
  const bool has_none = reading.fields.integer_or("num_local_experts", 8, 0, kMaxExperts) == 0;
  if (!has_none) {
    return read_mixtral_experts(reading);
  }
  reading.fields.ignore("num_experts_per_tok");
  reading.model.ffn = reading.fields.integer_or("shared_intermediate_size", 1024, 1, kMaxFfn);
}

// Layers from moe_layer_start_index to moe_layer_end_index, every moe_layer_interval-th (the class
// counts these from the first layer).
void read_ernie_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  MoeSpec& moe = reading.model.moe;
  const std::int64_t last = reading.model.num_layers() - 1;
  read_routed(reading);
  moe.shared_ffn = moe.expert_ffn * fields.integer_or("moe_num_shared_experts", 2, 0, kMaxExperts);
  const std::int64_t begin = fields.integer_or("moe_layer_start_index", 1, 0, last);
  const std::int64_t end = fields.integer_or("moe_layer_end_index", -1, -1, kMaxLayers);
  const std::int64_t interval = fields.integer_or("moe_layer_interval", 1, 1, kMaxLayers);
  for (std::int64_t i = begin; i <= (end < 0 ? last : std::min(end, last)); ++i) {
    if ((i + 1) % interval == 0) {
      mark_moe(reading.model, i);
    }
  }
}

// A shared FFN of the experts' width, which is intermediate_size; files repeat numbers by layer.
void read_hunyuan_experts(ConfigReading& reading) {
  for (const std::string_view key : {"moe_intermediate_size", "num_shared_expert"}) {
    if (is_given(reading, key)) {
      same_in_all_layers(reading, key, 0, kMaxFfn);
    }
    reading.fields.ignore(key);
  }
  read_mixtral_experts(reading);
  reading.model.moe.shared_ffn = reading.model.ffn;
}

// Layers whose index leaves expert_layer_offset by expert_layer_period, of an FFN's width.
void read_jamba_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  MoeSpec& moe = reading.model.moe;
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  moe.expert_ffn = reading.model.ffn;
  const std::int64_t period = fields.integer_or("expert_layer_period", 2, 1, kMaxLayers);
  const std::int64_t offset = fields.integer_or("expert_layer_offset", 1, 0, period - 1);
  for (std::int64_t i = offset; i < reading.model.num_layers(); i += period) {
    if (moe.num_experts > 1) {
      mark_moe(reading.model, i);
    }
  }
}

// The buffer that use_expert_bias adds is not among the published parameters.
void read_lfm2_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  const std::int64_t num_layers = reading.model.num_layers();
  read_routed(reading);
  for (std::int64_t i = fields.integer_or("num_dense_layers", 2, 0, num_layers); i < num_layers;
       ++i) {
    mark_moe(reading.model, i);
  }
}

// Which layers have experts, the pattern says. The class reads the shared expert's width alone,
// whatever n_shared_experts is.
void read_nemotron_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  MoeSpec& moe = reading.model.moe;
  if (!is_given(reading, "n_routed_experts")) {
    fields.ignore("n_routed_experts");
    return;
  }
  read_routed(reading);
  read_groups(reading);
  moe.shared_ffn = fields.integer_or("moe_shared_expert_intermediate_size", 7688, 1, kMaxFfn);
  moe.latent = integer_or_null(reading, "moe_latent_size", 0, 0, kMaxHidden);
}

// moe_layers_enum has the indices of layers with experts as one text, "3,4,5".
void read_step_experts(ConfigReading& reading) {
  ObjectReader& fields = reading.fields;
  const std::int64_t num_layers = reading.model.num_layers();
  read_routed(reading);
  reading.model.moe.shared_ffn = fields.integer_or(reading.named("share_expert_dim"),
                                                   reading.family.moe.shared_ffn, 0, kMaxFfn);
  if (mark_by_mlp_layer_types(reading)) {
    return fields.ignore("moe_layers_enum");
  }
  const std::string listed = fields.string_or("moe_layers_enum", "");
  for (std::int64_t i = 3; listed.empty() && i < num_layers; ++i) { mark_moe(reading.model, i); }
  for (std::size_t at = 0; at < listed.size();) {
    const std::size_t comma = std::min(listed.find(',', at), listed.size());
    const std::optional<std::int64_t> layer = count_of(listed.substr(at, comma - at));
    if (!layer || *layer >= num_layers) {
      throw unknown_word(reading, "moe_layers_enum", listed, "indices of layers, \"3,4,5\"");
    }
    mark_moe(reading.model, *layer);
    at = comma + 1;
  }
}

// Experts in every decoder_sparse_step-th layer, except those of mlp_only_layers.
void read_qwen_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const std::int64_t step = reading.fields.integer_or("decoder_sparse_step", 1, 1, kMaxExperts);
  const auto dense =
      layer_indices(reading, "mlp_only_layers").value_or(std::vector<std::int64_t>());
  read_routed(reading);
  if (reading.family.moe.shared_ffn > 0) {
    moe.shared_ffn = class_default(reading, "shared_expert_intermediate_size",
                                   reading.family.moe.shared_ffn, kMaxFfn);
    moe.shared_gate = reading.family.moe.shared_gate;
  }
  for (std::int64_t i = step - 1; i < reading.model.num_layers(); i += step) {
    mark_moe(reading.model, i);
  }
  for (const std::int64_t i : dense) {
    reading.model.layers[static_cast<std::size_t>(i)].is_moe = false;
  }
}

// (modeling_deepseek.py of deepseek-ai/DeepSeek-V2 has moe_layer_freq; the classes in transformers
// know only 1).
void read_deepseek_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const ModelFamily& family = reading.family;
  constexpr std::array kSharedNames =
      std::to_array<std::string_view>({"n_shared_experts", "num_shared_experts"});
  const bool is_null = reading.fields.is_null(kSharedNames.front());
  const std::int64_t num_shared =
      aliased(reading, kSharedNames, kMaxExperts).value_or(is_null ? 0 : family.num_shared_experts);
  const std::string method = reading.fields.string_or("topk_method", "noaux_tc");
  read_routed(reading);
  read_groups(reading);
  moe.shared_ffn = num_shared * moe.expert_ffn;
  moe.router_bias = family.moe.router_bias && method == "noaux_tc";
  mark_after_dense(reading);
  read_prediction_modules(reading);
}

// intermediate_size is the width of an expert and of the one shared expert; dense layers have
// intermediate_size_mlp.
void read_llama4_experts(ConfigReading& reading) {
  MoeSpec& moe = reading.model.moe;
  const std::int64_t num_layers = reading.model.num_layers();
  moe.num_experts = num_experts(reading);
  moe.topk = topk(reading);
  moe.expert_ffn = reading.model.ffn;
  moe.shared_ffn = reading.model.ffn;
  reading.model.ffn = class_default(reading, "intermediate_size_mlp", 16384, kMaxFfn);
  const std::int64_t step =
      reading.fields.integer_or("interleave_moe_layer_step", 1, 1, num_layers);
  if (const auto listed = layer_indices(reading, "moe_layers")) {
    for (const std::int64_t i : *listed) { mark_moe(reading.model, i); }
    return;
  }
  for (std::int64_t i = step - 1; i < num_layers; i += step) { mark_moe(reading.model, i); }
}

}  // namespace shardplan
