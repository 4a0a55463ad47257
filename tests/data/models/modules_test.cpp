// Names of linear layers as Hugging Face's classes have them, and targets that fit them.
#include "data/models/modules.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "data/read/library.h"

namespace shardplan {
namespace {

ModelSpec preset(const std::string& name) {
  return Library().model(name, UnknownKeys::kRefuse).model;
}

std::vector<std::string> paths(const ModelSpec& model, std::int64_t layer) {
  std::vector<std::string> found;
  for (const LinearModule& module : linear_modules(model, layer)) { found.push_back(module.path); }
  return found;
}

std::vector<std::string> placed(const FittedTargets& fitted) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < fitted.targets.on.size(); ++i) {
    if (fitted.targets.on.at(i)) {
      names.emplace_back(kLinearLayerNames.at(i));
    }
  }
  return names;
}

using Names = std::vector<std::string>;

TEST_CASE("modules have the names of their classes") {
  CHECK(paths(preset("llama3-8b"), 3) ==
        Names{"model.layers.3.self_attn.q_proj", "model.layers.3.self_attn.k_proj",
              "model.layers.3.self_attn.v_proj", "model.layers.3.self_attn.o_proj",
              "model.layers.3.mlp.gate_proj", "model.layers.3.mlp.up_proj",
              "model.layers.3.mlp.down_proj"});
  CHECK(paths(preset("phi-2"), 0) ==
        Names{"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
              "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.dense",
              "model.layers.0.mlp.fc1", "model.layers.0.mlp.fc2"});
  CHECK(paths(preset("pythia-1.4b"), 1) ==
        Names{"gpt_neox.layers.1.attention.query_key_value", "gpt_neox.layers.1.attention.dense",
              "gpt_neox.layers.1.mlp.dense_h_to_4h", "gpt_neox.layers.1.mlp.dense_4h_to_h"});
  CHECK(paths(preset("falcon-h1-0.5b"), 0).at(4) == "model.layers.0.mamba.in_proj");
  CHECK(paths(preset("lfm2-1.2b"), 0) ==
        Names{"model.layers.0.conv.in_proj", "model.layers.0.conv.out_proj",
              "model.layers.0.feed_forward.w1", "model.layers.0.feed_forward.w3",
              "model.layers.0.feed_forward.w2"});
  CHECK(paths(preset("glm-4.7-flash"), 0).at(1) == "model.layers.0.self_attn.q_b_proj");
}

TEST_CASE("Kimi delta attention has names of attention in places of its own") {
  const ModelSpec kimi = preset("kimi-linear-48b-a3b");
  CHECK(paths(kimi, 0).at(1) == "model.layers.0.self_attn.k_proj");
  CHECK(paths(kimi, 0).at(3) == "model.layers.0.self_attn.forget_gate.f_a_proj");
  CHECK(paths(kimi, 3).at(1) == "model.layers.3.self_attn.kv_a_proj_with_mqa");
  const FittedTargets fitted = fit_names(kimi, {"q_proj", "k_proj", "v_proj", "o_proj"});
  CHECK(placed(fitted) == Names{"q_proj", "o_proj", "in_proj"});
  CHECK(fitted.in_part.empty());
  CHECK(fit_names(kimi, {"k_proj"}).in_part == "model.layers.0.self_attn.k_proj");
}

TEST_CASE("names fit the ends of modules' paths, word by word") {
  const ModelSpec next = preset("qwen3-next-80b-a3b");
  const FittedTargets fitted =
      fit_names(next, {"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba", "q_proj"});
  CHECK(placed(fitted) == Names{"q_proj", "in_proj", "in_proj_ba"});
  CHECK(fitted.in_part.empty());
  CHECK(fitted.unfit.empty());
  CHECK(fitted.targets.experts == ExpertTargets::kNone);
  // "proj" is no word of any path, and "attn.q_proj" no end of "self_attn.q_proj".
  CHECK(fit_names(next, {"proj", "attn.q_proj"}).unfit == Names{"proj", "attn.q_proj"});
}

TEST_CASE("names of other families' layers fit nothing") {
  const FittedTargets latent =
      fit_names(preset("glm-4.7-flash"), {"q_proj", "k_proj", "v_proj", "o_proj"});
  CHECK(placed(latent) == Names{"o_proj"});
  CHECK(latent.unfit == Names{"q_proj", "k_proj", "v_proj"});
  CHECK(fit_names(preset("phi-3-mini"), {"q_proj"}).unfit == Names{"q_proj"});
  CHECK(placed(fit_names(preset("phi-3-mini"), {"qkv_proj"})) ==
        Names{"q_proj", "k_proj", "v_proj"});
}

TEST_CASE("names of an FFN are those of experts, too") {
  const FittedTargets shared = fit_names(preset("qwen3-next-80b-a3b"), {"shared_expert.up_proj"});
  CHECK(placed(shared) == Names{"up_proj"});
  CHECK(shared.targets.experts == ExpertTargets::kFfnNames);
}

TEST_CASE("a pattern fits whole paths") {
  const ModelSpec lfm = preset("lfm2-8b-a1b");
  const FittedTargets fitted = fit_pattern(
      lfm, R"(model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj)", "here");
  CHECK(placed(fitted) == Names{"q_proj", "k_proj", "v_proj"});
  CHECK(fit_pattern(lfm, "q_proj", "here").unfit == Names{"q_proj"});
  CHECK(placed(fit_pattern(lfm, ".*q_proj", "here")) == Names{"q_proj"});
  CHECK_THROWS_AS(fit_pattern(lfm, "(q_proj", "here"), InputError);
}

TEST_CASE("a target of some layers alone is told apart from one of all") {
  const ModelSpec llama = preset("llama3-8b");
  CHECK(fit_pattern(llama, R"(model\.layers\.[0-3]\..*q_proj)", "here").in_part ==
        "model.layers.0.self_attn.q_proj");
  CHECK(fit_names(llama, {"layers.31.self_attn.v_proj"}).in_part ==
        "model.layers.31.self_attn.v_proj");
  CHECK(fit_names(preset("qwen3-next-80b-a3b"), {"out_proj"}).in_part.empty());
}

TEST_CASE("runs that name no targets have those of peft's list") {
  CHECK(placed(fit_names(preset("phi-2"), default_targets(preset("phi-2")))) ==
        Names{"q_proj", "v_proj", "up_proj", "down_proj"});
  CHECK(placed(fit_names(preset("pythia-1b"), default_targets(preset("pythia-1b")))) ==
        Names{"q_proj", "k_proj", "v_proj"});
  CHECK(default_targets(preset("llama3-8b")) == Names{"q_proj", "v_proj"});
}

}  // namespace
}  // namespace shardplan
