// Which parts of a model a Trainer's run loads and trains, by the words of its program.
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "data/arguments/run_settings.h"
#include "data/read/case_tuning.h"

namespace shardplan {
namespace {

using Words = std::initializer_list<std::pair<const char*, const char*>>;

RunReading read(TrainerProject project, const char* model, const Words& words) {
  const Library library;
  RunSettings settings;
  settings.format = RunFormat::kTransformers;
  settings.trainer = project;
  settings.file = "run";
  settings.model = model;
  settings.arguments = {{.name = "max_length", .values = {"2048"}, .place = "run: "}};
  for (const auto& [name, value] : words) {
    settings.arguments.push_back(
        {.name = name, .values = {value}, .place = "run: " + std::string(name) + ": "});
  }
  return read_run(settings, library.cluster("1x8-h100"), library);
}

TowerUse use_of(TrainerProject project, const char* model, const Words& words = {}) {
  return read(project, model, words).job.profile.vision_tower;
}

std::string rules_of(TrainerProject project, const Words& words, const char* model = "qwen3-4b") {
  const RunReading run = read(project, model, words);
  CHECK(run.unsupported == "");
  return text_of(run.job.name_rules);
}

}  // namespace

// transformers 5.17 models/auto/modeling_auto.py; axolotl 067b021 utils/config; LLaMA-Factory
// ff6d4d1 model/loader.py; ms-swift 3602360 swift/arguments/tuner_args.py.
TEST_CASE("a tower is loaded as the program's class of the model has it") {
  using enum TrainerProject;
  using enum TowerUse;
  CHECK(use_of(kTransformers, "qwen3.5-4b") == kAbsent);
  CHECK(use_of(kTransformers, "gemma3-4b") == kTrained);
  CHECK(use_of(kTransformers, "gemma3-1b") == kAbsent);
  CHECK(use_of(kAxolotl, "qwen3.5-4b") == kTrained);
  CHECK(use_of(kAxolotl, "qwen3.5-4b", {{"freeze_mm_modules", "true"}}) == kFrozen);
  CHECK(use_of(kAxolotl, "qwen3.5-4b", {{"adapter", "lora"}}) == kFrozen);
  CHECK(use_of(kFactory, "qwen3.5-4b", {{"finetuning_type", "full"}}) == kFrozen);
  CHECK(use_of(kFactoryV1, "qwen3.5-4b") == kTrained);
  CHECK(use_of(kSwift, "qwen3.5-4b") == kFrozenFloats);
  CHECK(use_of(kTrl, "qwen3.5-4b") == kTrained);
  CHECK(use_of(kAxolotl, "qwen3-4b") == kAbsent);
}

TEST_CASE("DDP looks for parameters without gradients where the program or peft's model makes it") {
  using enum TrainerProject;
  const auto looks = [](TrainerProject project, const Words& words) {
    return read(project, "qwen3.5-4b", words).job.profile.finds_unused;
  };
  CHECK(looks(kFactoryV1, {}));
  CHECK(looks(kTrl, {{"use_peft", "true"}, {"lora_target_modules", "q_proj"}}));
  CHECK_FALSE(looks(kAxolotl, {{"adapter", "lora"}, {"lora_target_modules", "q_proj"}}));
  CHECK(looks(kAxolotl, {{"ddp_find_unused_parameters", "true"}}));
}

TEST_CASE("a class that AutoModelForCausalLM does not have, and a tower that asks, are refused") {
  const RunReading causal = read(TrainerProject::kTransformers, "ministral-3-3b", {});
  CHECK(causal.unsupported.find("AutoModelForCausalLM") != std::string::npos);
  const RunReading asks = read(TrainerProject::kSwift, "qwen3.5-4b", {{"freeze_vit", "false"}});
  CHECK(asks.unsupported.find("freeze_vit false") != std::string::npos);
}

TEST_CASE("adapters reach the tower by names, unless the program keeps them on the text") {
  using enum TrainerProject;
  const auto targets_of = [](TrainerProject project, const Words& words) {
    return read(project, "ministral-3-3b", words).job.adapters.tower_targets;
  };
  CHECK(targets_of(kAxolotl, {{"adapter", "lora"}, {"lora_target_modules", "q_proj, v_proj"}}) ==
        TowerTargets::kByName);
  CHECK(targets_of(kAxolotl, {{"adapter", "lora"}, {"lora_target_linear", "true"}}) ==
        TowerTargets::kAll);
  CHECK(targets_of(kFactory, {{"lora_target", "all"}}) == TowerTargets::kNone);
  CHECK(targets_of(kSwift, {{"target_modules", "all-linear"}}) == TowerTargets::kNone);
  CHECK(targets_of(kSwift, {{"target_modules", "q_proj"}}) == TowerTargets::kByName);
}

TEST_CASE("a regular expression over modules names the text's layers alone") {
  const RunReading run =
      read(TrainerProject::kAxolotl, "ministral-3-3b",
           {{"adapter", "lora"},
            {"lora_target_modules",
             R"(model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj)"}});
  CHECK(run.unsupported == "");
  CHECK(run.job.adapters.is_on(LinearLayer::kOutput));
  CHECK(run.job.adapters.is_on(LinearLayer::kDown));
  CHECK(run.job.adapters.tower_targets == TowerTargets::kNone);
  const RunReading some = read(
      TrainerProject::kAxolotl, "ministral-3-3b",
      {{"adapter", "lora"}, {"lora_target_modules", R"(model.layers.[0-3].self_attn.q_proj)"}});
  CHECK(some.unsupported.find("4 of 26 layers") != std::string::npos);
}

// axolotl 067b021 utils/freeze.py, LayerNamePattern.
TEST_CASE("axolotl's expressions fit from the beginning of a name, with dots as they are") {
  using enum TrainerProject;
  CHECK(
      rules_of(kAxolotl, {{"unfrozen_parameters", "^lm_head.weight$, model.layers.2[0-9]+.mlp"}}) ==
      R"(frozen: all, then trained: ^(?:^lm_head\.weight$), then trained: )"
      R"(^(?:model\.layers\.2[0-9]+\.mlp))");
  CHECK(rules_of(kAxolotl, {{"unfrozen_parameters", "^model.embed_tokens.weight$[:32000]"}}) ==
        R"(frozen: all, then trained: ^(?:^model\.embed_tokens\.weight$))");
  const RunReading beside =
      read(kAxolotl, "qwen3-4b", {{"adapter", "lora"}, {"unfrozen_parameters", "lm_head"}});
  CHECK(beside.unsupported.find("base_model.model") != std::string::npos);
  const RunReading wrong = read(kAxolotl, "qwen3-4b", {{"unfrozen_parameters", "layers.[0"}});
  CHECK(wrong.unsupported.find("no regular expression") != std::string::npos);
}

TEST_CASE("axolotl checkpoints with reentrance only where all is trained") {
  const Words all = {{"gradient_checkpointing", "true"}};
  CHECK(read(TrainerProject::kAxolotl, "qwen3-4b", all).job.profile.reentrant_checkpoint);
  CHECK_FALSE(read(TrainerProject::kAxolotl, "qwen3-4b",
                   {{"gradient_checkpointing", "true"}, {"unfrozen_parameters", "lm_head"}})
                  .job.profile.reentrant_checkpoint);
}

// LLaMA-Factory ff6d4d1 model/adapter.py, _setup_freeze_tuning; qwen3-4b has 36 layers.
TEST_CASE("LLaMA-Factory's freeze trains the last layers, the first ones, or LLaMA Pro's") {
  using enum TrainerProject;
  CHECK(rules_of(kFactory, {{"finetuning_type", "freeze"}}) ==
        R"(frozen: all, then trained: \.(34|35)\.)");
  CHECK(rules_of(kFactory, {{"finetuning_type", "freeze"},
                            {"freeze_trainable_layers", "-1"},
                            {"freeze_trainable_modules", "mlp, self_attn"},
                            {"freeze_extra_modules", "lm_head"}}) ==
        R"(frozen: all, then trained: \.(0)\.(mlp|self_attn), then trained: lm_head)");
  CHECK(rules_of(kFactory, {{"finetuning_type", "freeze"},
                            {"freeze_trainable_layers", "3"},
                            {"use_llama_pro", "true"}}) ==
        R"(frozen: all, then trained: \.(11|23|35)\.)");
  const RunReading unknown =
      read(kFactory, "", {{"finetuning_type", "freeze"}, {"use_llama_pro", "true"}});
  CHECK(unknown.job.name_rules.empty());
  const RunReading run = read(kFactory, "qwen3-4b", {{"finetuning_type", "freeze"}});
  CHECK(run.job.adapters.rank == 0);
  CHECK(run.job.profile.narrow_frozen);
  CHECK_FALSE(run.job.profile.checkpoints_frozen);
}

// ms-swift 3602360 swift/utils/transformers_utils.py.
TEST_CASE("ms-swift freezes by prefixes, then trains what further words name") {
  CHECK(rules_of(TrainerProject::kSwift, {{"tuner_type", "full"},
                                          {"freeze_parameters", "model.layers.1, lm_head"},
                                          {"trainable_parameters_regex", "q_proj"}}) ==
        R"(frozen: ^model\.layers\.1, then frozen: ^lm_head, then trained: q_proj)");
}

}  // namespace shardplan
