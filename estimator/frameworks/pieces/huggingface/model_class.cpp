#include "estimator/frameworks/pieces/huggingface/model_class.h"

#include <algorithm>
#include <array>

namespace shardplan::huggingface {
namespace {

constexpr ModelClass kLlamaClass = {.family = "llama"};

constexpr std::array kClasses = std::to_array<ModelClass>({
    {.family = "qwen2", .always_has_full_mask = true},
    {.family = "qwen3", .always_has_full_mask = true},
    {.family = "smollm3", .always_has_full_mask = true},
    {.family = "gemma", .norm = NormKind::kGemma, .scales_embedding = true},
    {.family = "gemma2",
     .norm = NormKind::kGemma,
     .reuses_liger_gradient = false,
     .scales_embedding = true,
     .always_has_full_mask = true},
    {.family = "gemma3_text",
     .norm = NormKind::kGemma,
     .reuses_liger_gradient = false,
     .scales_embedding = true,
     .norms_heads_last = true,
     .always_has_full_mask = true,
     .has_rotary_by_window = true},
});

}  // namespace

const ModelClass& class_of(const ModelSpec& model) {
  const auto found = std::ranges::find(kClasses, model.family, &ModelClass::family);
  return found == kClasses.end() ? kLlamaClass : *found;
}

}  // namespace shardplan::huggingface
