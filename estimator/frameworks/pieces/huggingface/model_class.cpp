#include "estimator/frameworks/pieces/huggingface/model_class.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "estimator/plan/number.h"

namespace shardplan::huggingface {
namespace {

constexpr ModelClass kLlamaClass = {.family = "llama"};

constexpr std::array kClasses = std::to_array<ModelClass>({
    kLlamaClass,
    {.family = "mistral"},
    {.family = "ministral", .always_has_full_mask = true},
    {.family = "mixtral", .adapted_experts = AdaptedExperts::kByShorthand},
    {.family = "qwen3_moe", .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "qwen3_vl_text"},
    {.family = "qwen3_vl_moe_text"},
    {.family = "qwen2", .always_has_full_mask = true},
    {.family = "qwen3", .always_has_full_mask = true},
    {.family = "smollm3", .always_has_full_mask = true},
    {.family = "phi3", .rotary = RotaryKind::kPart, .has_one_qkv = true, .has_one_gate_up = true},
    {.family = "glm",
     .rotary = RotaryKind::kPairs,
     .liger = LigerUse::kNone,
     .has_one_gate_up = true},
    {.family = "glm4",
     .rotary = RotaryKind::kPairs,
     .liger = LigerUse::kNoRotary,
     .has_one_gate_up = true},
    {.family = "seed_oss", .liger = LigerUse::kNone, .residual_dropout = 0.1},
    {.family = "granite",
     .embedding_scale = EmbeddingScale::kBehindModule,
     .scales_residuals = true,
     .scales_logits = true},
    {.family = "granitemoe",
     .router = RouterKind::kSoftmaxOfChosen,
     .liger = LigerUse::kNone,
     .embedding_scale = EmbeddingScale::kBehindModule,
     .scales_residuals = true,
     .scales_logits = true},
    {.family = "granitemoeshared",
     .router = RouterKind::kSoftmaxOfChosen,
     .liger = LigerUse::kNone,
     .embedding_scale = EmbeddingScale::kBehindModule,
     .scales_residuals = true,
     .scales_logits = true,
     .has_one_gate_up = true},
    {.family = "olmo2",
     .norm = NormKind::kWide,
     .rotary = RotaryKind::kWideTables,
     .liger = LigerUse::kNotModelled},
    {.family = "olmo3",
     .norm = NormKind::kWide,
     .rotary = RotaryKind::kWideTables,
     .liger = LigerUse::kNotModelled,
     .always_has_full_mask = true,
     .has_rotary_by_window = true},
    {.family = "olmoe", .liger = LigerUse::kNone, .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "exaone4",
     .head_norms = HeadNorms::kBehindProjections,
     .liger = LigerUse::kNotModelled,
     .always_has_full_mask = true},
    {.family = "apertus", .head_norms = HeadNorms::kBehindProjections, .liger = LigerUse::kNone},
    {.family = "arcee", .liger = LigerUse::kNone},
    {.family = "nemotron",
     .norm = NormKind::kPlusOneLayer,
     .rotary = RotaryKind::kPart,
     .liger = LigerUse::kNotModelled},
    {.family = "starcoder2",
     .norm = NormKind::kLayer,
     .liger = LigerUse::kNone,
     .residual_dropout = 0.1,
     .embedding_dropout = 0.1},
    {.family = "stablelm",
     .norm = NormKind::kLayer,
     .rotary = RotaryKind::kPart,
     .liger = LigerUse::kNone},
    {.family = "cohere",
     .norm = NormKind::kCentred,
     .rotary = RotaryKind::kWide,
     .liger = LigerUse::kNone,
     .scales_logits = true},
    {.family = "cohere2",
     .norm = NormKind::kCentred,
     .rotary = RotaryKind::kWide,
     .liger = LigerUse::kNone,
     .scales_logits = true,
     .always_has_full_mask = true},
    {.family = "ernie4_5", .rotary = RotaryKind::kWidePairs, .liger = LigerUse::kNone},
    {.family = "ernie4_5_moe",
     .rotary = RotaryKind::kWidePairs,
     .router = RouterKind::kSoftmaxBesideAutocast,
     .liger = LigerUse::kNone,
     .runs_shared_experts_first = true,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "hunyuan_v1_dense",
     .head_norms = HeadNorms::kBehindRotary,
     .liger = LigerUse::kNotModelled},
    {.family = "hunyuan_v1_moe",
     .head_norms = HeadNorms::kBehindRotary,
     .router = RouterKind::kWideInput,
     .liger = LigerUse::kNotModelled,
     .runs_shared_experts_first = true,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "nemotron_h",
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .widens_logits = true},
    {.family = "bamba", .rotary = RotaryKind::kPart, .liger = LigerUse::kNone},
    {.family = "lfm2", .liger = LigerUse::kNone},
    {.family = "minimax_m2",
     .rotary = RotaryKind::kPart,
     .router = RouterKind::kSigmoid,
     .liger = LigerUse::kNone,
     .adapted_experts = AdaptedExperts::kByShorthand},
    {.family = "gpt_oss",
     .norm = NormKind::kWide,
     .rotary = RotaryKind::kSplit,
     .router = RouterKind::kNarrowSoftmaxOfChosen,
     .liger = LigerUse::kNotModelled,
     .always_has_full_mask = true},
    {.family = "qwen3_next",
     .norm = NormKind::kGemma,
     .head_norms = HeadNorms::kByProjection,
     .rotary = RotaryKind::kPart,
     .liger = LigerUse::kNotModelled,
     .runs_shared_experts_first = true,
     .joins_delta_projections = true,
     .always_has_full_mask = true,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "qwen3_5_text",
     .norm = NormKind::kGemma,
     .head_norms = HeadNorms::kByProjection,
     .rotary = RotaryKind::kPart,
     .liger = LigerUse::kNotModelled,
     .has_rotary_by_sequence = true,
     .always_has_full_mask = true},
    {.family = "qwen3_5_moe_text",
     .norm = NormKind::kGemma,
     .head_norms = HeadNorms::kByProjection,
     .rotary = RotaryKind::kPart,
     .liger = LigerUse::kNotModelled,
     .runs_shared_experts_first = true,
     .has_rotary_by_sequence = true,
     .always_has_full_mask = true},
    {.family = "qwen2_moe", .liger = LigerUse::kNone, .always_has_full_mask = true},
    {.family = "deepseek_v2",
     .rotary = RotaryKind::kComplex,
     .router = RouterKind::kWideSoftmax,
     .liger = LigerUse::kNone,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "deepseek_v3",
     .rotary = RotaryKind::kEvenAndOdd,
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "kimi_k2",
     .rotary = RotaryKind::kEvenAndOdd,
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "dots1",
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .always_has_full_mask = true,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "glm4_moe",
     .head_norms = HeadNorms::kBehindProjections,
     .rotary = RotaryKind::kPart,
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .adapted_experts = AdaptedExperts::kByFfnNames},
    {.family = "gemma", .norm = NormKind::kGemma, .embedding_scale = EmbeddingScale::kInModule},
    {.family = "gemma2",
     .norm = NormKind::kGemma,
     .reuses_liger_gradient = false,
     .embedding_scale = EmbeddingScale::kInModule,
     .always_has_full_mask = true},
    {.family = "gemma3_text",
     .norm = NormKind::kGemma,
     .head_norms = HeadNorms::kBehindProjections,
     .always_has_liger_head_norms = true,
     .reuses_liger_gradient = false,
     .embedding_scale = EmbeddingScale::kInModule,
     .always_has_full_mask = true,
     .has_rotary_by_window = true},
});

}  // namespace

const ModelClass& class_of(const ModelSpec& model) {
  const auto found = std::ranges::find(kClasses, model.family, &ModelClass::family);
  return found == kClasses.end() ? kLlamaClass : *found;
}

bool is_known_family(const ModelSpec& model) {
  return model.family.empty() ||
         std::ranges::find(kClasses, model.family, &ModelClass::family) != kClasses.end();
}

bool is_layer_norm(NormKind kind) {
  using enum NormKind;
  return kind == kCentred || kind == kLayer || kind == kPlusOneLayer;
}

bool has_recurrences(const ModelSpec& model) {
  return std::ranges::any_of(model.layers, [](const LayerSpec& layer) {
    return layer.mixer != MixerKind::kAttention && layer.mixer != MixerKind::kNone;
  });
}

std::int64_t rotary_width(const ModelSpec& model) {
  return std::llround(number(model.rotary_dim()) * model.rotary_share);
}

}  // namespace shardplan::huggingface
