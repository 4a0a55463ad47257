#include "estimator/plan/model_parts.h"

#include <algorithm>
#include <array>

namespace shardplan {
namespace {

bool has_layer(const ModelSpec& model, bool (*is_one)(const LayerSpec& layer)) {
  return std::ranges::any_of(model.layers, is_one);
}

template <MixerKind kind>
bool has_mixer(const ModelSpec& model) {
  return has_layer(model, [](const LayerSpec& layer) { return layer.mixer == kind; });
}

template <bool LayerSpec::*field>
bool has_layer_with(const ModelSpec& model) {
  return has_layer(model, [](const LayerSpec& layer) { return layer.*field; });
}

template <KeyValueSource source>
bool takes_keys_from(const ModelSpec& model) {
  return has_layer(model, [](const LayerSpec& layer) { return layer.key_values == source; });
}

// Experts and FFNs have the same activation.
template <Activation activation>
bool activates_by(const ModelSpec& model) {
  return model.activation == activation;
}

struct NamedPart {
  ModelPart part;
  std::string_view name;
  bool (*is_needed)(const ModelSpec& model);
};

constexpr std::array<NamedPart, kNumModelParts> kParts = {{
    {.part = ModelPart::kGatedDelta,
     .name = "gated delta net",
     .is_needed = has_mixer<MixerKind::kGatedDelta>},
    {.part = ModelPart::kKimiDelta,
     .name = "Kimi delta attention",
     .is_needed = has_mixer<MixerKind::kKimiDelta>},
    {.part = ModelPart::kLightning,
     .name = "lightning attention",
     .is_needed = has_mixer<MixerKind::kLightning>},
    {.part = ModelPart::kMamba1, .name = "Mamba", .is_needed = has_mixer<MixerKind::kMamba1>},
    {.part = ModelPart::kMamba2,
     .name = "Mamba-2",
     .is_needed =
         [](const ModelSpec& model) {
           return has_mixer<MixerKind::kMamba2>(model) ||
                  has_layer_with<&LayerSpec::has_mamba_beside>(model);
         }},
    {.part = ModelPart::kShortConvolution,
     .name = "short convolutions",
     .is_needed = has_mixer<MixerKind::kShortConvolution>},
    {.part = ModelPart::kParallelMixers,
     .name = "Mamba-2 beside attention",
     .is_needed = has_layer_with<&LayerSpec::has_mamba_beside>},
    {.part = ModelPart::kSingleParts,
     .name = "layers of a mixer or an FFN alone",
     .is_needed =
         [](const ModelSpec& model) {
           return has_layer(model, [](const LayerSpec& layer) {
             return layer.mixer == MixerKind::kNone || !layer.has_ffn;
           });
         }},
    {.part = ModelPart::kSharedKey,
     .name = "one key head that is its value, too",
     .is_needed =
         [](const ModelSpec& model) { return model.attention == AttentionKind::kSharedKey; }},
    {.part = ModelPart::kIndexer,
     .name = "attention to keys that an indexer chooses",
     .is_needed = has_layer_with<&LayerSpec::has_indexer>},
    {.part = ModelPart::kSinks,
     .name = "attention sinks",
     .is_needed = has_layer_with<&LayerSpec::has_sinks>},
    {.part = ModelPart::kAttentionGate,
     .name = "gated attention",
     .is_needed =
         [](const ModelSpec& model) { return model.attention_gate != AttentionGate::kNone; }},
    {.part = ModelPart::kHeadsByLayer,
     .name = "attention heads that differ by layer or between keys and values",
     .is_needed =
         [](const ModelSpec& model) {
           return has_layer(model,
                            [](const LayerSpec& layer) { return layer.heads != AttentionHeads{}; });
         }},
    {.part = ModelPart::kSharedKeys,
     .name = "keys and values of earlier layers",
     .is_needed = takes_keys_from<KeyValueSource::kEarlierLayer>},
    {.part = ModelPart::kKeysAsValues,
     .name = "keys that are values, too",
     .is_needed = takes_keys_from<KeyValueSource::kKeysAreValues>},
    {.part = ModelPart::kAllHeadNorms,
     .name = "norms of all heads at once",
     .is_needed = [](const ModelSpec& model) { return model.norms_all_heads; }},
    {.part = ModelPart::kNormsAfter,
     .name = "norms after attention and FFN alone",
     .is_needed = [](const ModelSpec& model) { return model.norms_after; }},
    {.part = ModelPart::kParallelFfn,
     .name = "attention and FFN side by side",
     .is_needed = [](const ModelSpec& model) { return model.parallel_ffn; }},
    {.part = ModelPart::kNormsWithoutBias,
     .name = "LayerNorms without bias",
     .is_needed =
         [](const ModelSpec& model) {
           return model.layer_norm && !(model.norm_bias && model.qk_norm_bias);
         }},
    {.part = ModelPart::kNormsWithoutWeights,
     .name = "norms without weights",
     .is_needed = [](const ModelSpec& model) { return !model.norm_weights; }},
    {.part = ModelPart::kFfnByLayer,
     .name = "FFN widths that differ by layer",
     .is_needed =
         [](const ModelSpec& model) {
           return has_layer(model, [](const LayerSpec& layer) { return layer.ffn > 0; });
         }},
    {.part = ModelPart::kReluSquared,
     .name = "squared ReLU",
     .is_needed = activates_by<Activation::kReluSquared>},
    {.part = ModelPart::kRelu, .name = "ReLU", .is_needed = activates_by<Activation::kRelu>},
    {.part = ModelPart::kXielu, .name = "xIELU", .is_needed = activates_by<Activation::kXielu>},
    {.part = ModelPart::kClampedSwiglu,
     .name = "clamped SwiGLU",
     .is_needed = activates_by<Activation::kClampedSwiglu>},
    {.part = ModelPart::kBiasedRouter,
     .name = "a router with a trained bias",
     .is_needed = [](const ModelSpec& model) { return model.moe.biased_router; }},
    {.part = ModelPart::kBiasedExperts,
     .name = "experts with biases",
     .is_needed = [](const ModelSpec& model) { return model.moe.biased_experts; }},
    {.part = ModelPart::kLatentExperts,
     .name = "experts of projected tokens",
     .is_needed = [](const ModelSpec& model) { return model.moe.latent > 0; }},
    {.part = ModelPart::kExpertsBesideDense,
     .name = "experts beside a dense FFN",
     .is_needed = [](const ModelSpec& model) { return model.moe.beside_dense; }},
    {.part = ModelPart::kHeadBias,
     .name = "a head with a bias",
     .is_needed = [](const ModelSpec& model) { return model.head_bias; }},
    {.part = ModelPart::kPerLayerEmbedding,
     .name = "embeddings of every layer",
     .is_needed = [](const ModelSpec& model) { return model.per_layer_embedding.width > 0; }},
    {.part = ModelPart::kResidualStreams,
     .name = "several residual streams",
     .is_needed = [](const ModelSpec& model) { return model.residual_streams.count > 1; }},
    {.part = ModelPart::kAlibi,
     .name = "ALiBi",
     .is_needed = [](const ModelSpec& model) { return model.has_alibi; }},
    {.part = ModelPart::kClippedQkv,
     .name = "bounded queries, keys and values",
     .is_needed = [](const ModelSpec& model) { return model.clips_qkv; }},
}};

}  // namespace

std::string_view name_of(ModelPart part) {
  return std::ranges::find(kParts, part, &NamedPart::part)->name;
}

std::optional<ModelPart> missing_part(const ModelSpec& model, ModelParts known) {
  for (const NamedPart& row : kParts) {
    if (!known.has(row.part) && row.is_needed(model)) {
      return row.part;
    }
  }
  return std::nullopt;
}

}  // namespace shardplan
