#include "data/arguments/torchtitan_models.h"

#include <algorithm>
#include <array>
#include <utility>

#include "data/arguments/torchtitan.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

// torchtitan/models/{llama3,llama4,qwen3,deepseek_v3,gpt_oss}/__init__.py: the flavors with the
// shape of a published model. Llama 4's with irope do not run at v0.2.2: flex_attention is given
// both masks.
struct Flavor {
  std::string_view name;
  std::string_view preset;
};
constexpr std::array<Flavor, 18> kFlavors = {{
    {.name = "llama3/8B", .preset = "llama3-8b"},
    {.name = "llama3/70B", .preset = "llama3-70b"},
    {.name = "llama3/405B", .preset = "llama3.1-405b"},
    {.name = "llama4/17bx16e", .preset = "llama4-scout"},
    {.name = "llama4/17bx128e", .preset = "llama4-maverick"},
    {.name = "qwen3/0.6B", .preset = "qwen3-0.6b"},
    {.name = "qwen3/1.7B", .preset = "qwen3-1.7b"},
    {.name = "qwen3/4B", .preset = "qwen3-4b"},
    {.name = "qwen3/8B", .preset = "qwen3-8b"},
    {.name = "qwen3/14B", .preset = "qwen3-14b"},
    {.name = "qwen3/32B", .preset = "qwen3-32b"},
    {.name = "qwen3/30B-A3B", .preset = "qwen3-30b-a3b"},
    {.name = "qwen3/235B-A22B", .preset = "qwen3-235b-a22b"},
    {.name = "deepseek_v3/16B", .preset = "deepseek-v2-lite"},
    {.name = "deepseek_v3/236B", .preset = "deepseek-v2"},
    {.name = "deepseek_v3/671B", .preset = "deepseek-v3"},
    {.name = "gpt_oss/20b", .preset = "gpt-oss-20b"},
    {.name = "gpt_oss/120b", .preset = "gpt-oss-120b"},
}};

constexpr const char* kDebugModel = "llama3/debugmodel";
constexpr const char* kGptOssDebugModel = "gpt_oss/debugmodel";

// Models of torchtitan's main branch that no release has: pytorch/torchtitan fd712e814 (2026-06-10)
// and 85c549b93 (2026-07-29) add them, v0.2.2 is older.
constexpr std::array<std::string_view, 2> kModelsOfMain = {"qwen3_5", "kimi_k2_7"};

// The tests' own small model: dim 256, 6 layers, 16 heads, FFN 2/3 of 4 dim up to 256.
ModelSpec debug_model() {
  ModelSpec model;
  model.name = kDebugModel;
  model.family = "llama";
  model.hidden = 256;
  model.ffn = 768;
  model.vocab = 2048;
  model.num_heads = 16;
  model.num_kv_heads = 16;
  model.head_dim = 16;
  model.layers.resize(6);
  return model;
}

// dim 256, 4 layers, 8 experts, and what else GptOssModelArgs has.
ModelSpec gpt_oss_debug_model(const Library& library) {
  constexpr std::size_t kLayers = 4;
  ModelSpec model = library.model("gpt-oss-20b").model;
  model.name = kGptOssDebugModel;
  model.hidden = 256;
  model.moe.num_experts = 8;
  model.layers.resize(kLayers);
  return model;
}

}  // namespace

std::vector<std::string> torchtitan_flavors() {
  std::vector<std::string> names = {kDebugModel, kGptOssDebugModel};
  for (const Flavor& flavor : kFlavors) { names.emplace_back(flavor.name); }
  return names;
}

std::optional<ModelSpec> torchtitan_model(const std::string& flavor, const Library& library) {
  if (flavor == kDebugModel) {
    return debug_model();
  }
  if (flavor == kGptOssDebugModel) {
    return gpt_oss_debug_model(library);
  }
  const auto* const found = std::ranges::find(kFlavors, flavor, &Flavor::name);
  if (found == kFlavors.end()) {
    return std::nullopt;
  }
  ModelSpec model = library.model(std::string(found->preset)).model;
  model.num_mtp_layers = 0;  // of which torchtitan has none
  return model;
}

ModelSpec torchtitan_model_of(const RunArguments& arguments, const Library& library,
                              std::vector<std::string>& notes) {
  const std::string name = arguments.text_or("model.name", "llama3") + "/" +
                           arguments.text_or("model.flavor", "debugmodel");
  if (name == kDebugModel && !arguments.has("model.flavor")) {
    notes.emplace_back(
        arguments.error("model.flavor", "found nothing, took torchtitan's default, " + name)
            .what());
  }
  if (std::optional<ModelSpec> model = torchtitan_model(name, library)) {
    return std::move(*model);
  }
  const std::string family = arguments.text_or("model.name", "");
  if (std::ranges::find(kModelsOfMain, family) != kModelsOfMain.end()) {
    throw arguments.error("model.name", "found \"" + family +
                                            "\", which torchtitan has on its main branch alone, "
                                            "behind v0.2.2; expected a model of v0.2.2");
  }
  const std::vector<std::string> names = torchtitan_flavors();
  throw arguments.error(arguments.has("model.flavor") ? "model.flavor" : "model.name",
                        "found \"" + shown(name, Encoding::kUnchecked) + "\", expected one of " +
                            joined(names) + suggestion(name, names));
}

}  // namespace shardplan
