#include "estimator/frameworks/pieces/huggingface/model_class.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "estimator/plan/number.h"

namespace shardplan::huggingface {
namespace {

constexpr ModelClass kLlamaClass = {.family = "llama"};

constexpr std::array kClasses = std::to_array<ModelClass>({
    {.family = "qwen2", .always_has_full_mask = true},
    {.family = "qwen3", .always_has_full_mask = true},
    {.family = "smollm3", .plain_layer_interval = 4, .always_has_full_mask = true},
    {.family = "phi3", .rotary = RotaryKind::kPart, .has_one_qkv = true, .has_one_gate_up = true},
    {.family = "glm4",
     .rotary = RotaryKind::kPairs,
     .rotary_share = 0.5,
     .liger = LigerUse::kNoRotary,
     .has_one_gate_up = true},
    {.family = "seed_oss", .liger = LigerUse::kNone, .residual_dropout = 0.1},
    {.family = "granite",
     .embedding_scale = EmbeddingScale::kBehindModule,
     .scales_residuals = true,
     .scales_logits = true},
    {.family = "qwen2_moe", .liger = LigerUse::kNone, .always_has_full_mask = true},
    {.family = "deepseek_v2",
     .rotary = RotaryKind::kComplex,
     .router = RouterKind::kWideSoftmax,
     .liger = LigerUse::kNone,
     .adapts_experts = true},
    {.family = "deepseek_v3",
     .rotary = RotaryKind::kEvenAndOdd,
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .adapts_experts = true},
    {.family = "kimi_k2",
     .rotary = RotaryKind::kEvenAndOdd,
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .adapts_experts = true},
    {.family = "glm4_moe",
     .rotary = RotaryKind::kPart,
     .rotary_share = 0.5,
     .router = RouterKind::kWideSigmoid,
     .liger = LigerUse::kNone,
     .norms_heads_last = true,
     .adapts_experts = true},
    {.family = "gemma", .norm = NormKind::kGemma, .embedding_scale = EmbeddingScale::kInModule},
    {.family = "gemma2",
     .norm = NormKind::kGemma,
     .reuses_liger_gradient = false,
     .embedding_scale = EmbeddingScale::kInModule,
     .always_has_full_mask = true},
    {.family = "gemma3_text",
     .norm = NormKind::kGemma,
     .always_has_liger_head_norms = true,
     .reuses_liger_gradient = false,
     .embedding_scale = EmbeddingScale::kInModule,
     .norms_heads_last = true,
     .always_has_full_mask = true,
     .has_rotary_by_window = true},
});

}  // namespace

const ModelClass& class_of(const ModelSpec& model) {
  const auto found = std::ranges::find(kClasses, model.family, &ModelClass::family);
  return found == kClasses.end() ? kLlamaClass : *found;
}

std::int64_t rotary_width(const ModelSpec& model) {
  return std::llround(number(model.rotary_dim()) * class_of(model).rotary_share);
}

}  // namespace shardplan::huggingface
