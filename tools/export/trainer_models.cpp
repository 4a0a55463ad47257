#include "tools/export/trainer_models.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/read/input_error.h"

namespace shardplan {
namespace {

// Of the types that data/models describes those that transformers 5.17
// models/auto/modeling_auto.py, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, has not: their code comes with
// the checkpoint, or they are models of text and images, which other classes load.
constexpr auto kWithoutClass = std::to_array<std::string_view>({
    "aya_vision",   "bailing_moe",       "bailing_moe_v2", "chatglm",       "cohere2_vision",
    "deepseek",     "deepseek_vl_v2",    "exaone",         "exaone4_5",     "glm4v",
    "glm4v_moe",    "glm4v_moe_text",    "glm4v_text",     "idefics3",      "internlm2",
    "internlm3",    "internvl",          "internvl_chat",  "kimi_k2",       "kimi_k25",
    "kimi_vl",      "lfm2_vl",           "llava",          "llava_next",    "llava_onevision",
    "mimo",         "minicpm",           "minimax_m3",     "minimax_m3_vl", "minimax_text_01",
    "mistral3",     "mistral4",          "nemotron-nas",   "orion",         "paligemma",
    "phi3_v",       "qwen2_5_vl",        "qwen2_vl",       "qwen2_vl_text", "qwen3_vl",
    "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_text",  "smolvlm",       "step3p5",
    "step3p7",      "voxtral",
});

std::string model_type_of(const JsonValue& config) {
  const auto found = std::ranges::find(config.members, "model_type", &JsonMember::name);
  return found == config.members.end() ? "" : found->value.string;
}

}  // namespace

void refuse_model_without_class(const ExportRequest& request) {
  const std::string type = model_type_of(request.model.config);
  if (std::ranges::find(kWithoutClass, type) != kWithoutClass.end()) {
    throw InputError("--export: transformers 5.17 has no AutoModelForCausalLM of model_type " +
                     type + ", which train.py would load; nothing is written");
  }
}

}  // namespace shardplan
