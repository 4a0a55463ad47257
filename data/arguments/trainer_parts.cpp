// Sources: transformers 5.17 models/auto/modeling_auto.py; axolotl 067b021 utils/config
// normalize_config (is_multimodal), train.py, utils/freeze.py; LLaMA-Factory ff6d4d1
// model/loader.py load_model, model/adapter.py, model/model_utils/visual.py, v1/core/
// model_engine.py, v1/plugins/model_plugins/peft.py get_freeze_model; ms-swift 3602360
// swift/arguments/tuner_args.py, swift/utils/transformers_utils.py freeze_parameters,
// activate_parameters, swift/pipelines/train/tuner.py; TRL f2cd577 trainer/utils.py
// create_model_from_path.
#include "data/arguments/trainer_parts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <regex>
#include <string_view>
#include <vector>

#include "data/arguments/trainer_names.h"
#include "data/arguments/trainer_optimizers.h"
#include "data/read/case_tuning.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

// The first layers for a negative number, the last ones for others; LLaMA Pro's are every
// stride-th.
std::vector<std::int64_t> trained_layers(const TrainerFile& trainer, RunReading& run,
                                         const char* setting) {
  constexpr std::int64_t kMost = 4096;
  const std::int64_t layers = run.job.model.num_layers();
  const std::int64_t count = trainer.arguments.integer_or(setting, 2, -kMost, kMost);
  std::vector<std::int64_t> indices;
  if (is_on(trainer.arguments, "use_llama_pro")) {
    if (count < 1 || layers % count != 0) {
      refuse(run, std::string(setting) + " " + std::to_string(count) + " of a model of " +
                      std::to_string(layers) +
                      " layers: LLaMA Pro wants a number that divides them");
      return {};
    }
    const std::int64_t stride = layers / count;
    for (std::int64_t i = stride - 1; i < layers; i += stride) { indices.push_back(i); }
    return indices;
  }
  const std::int64_t first = count > 0 ? std::max<std::int64_t>(0, layers - count) : 0;
  const std::int64_t end = count > 0 ? layers : std::min(-count, layers);
  for (std::int64_t i = first; i < end; ++i) { indices.push_back(i); }
  return indices;
}

void read_named_layers(const TrainerFile& trainer, RunReading& run) {
  const bool is_version_1 = trainer.defaults.project == TrainerProject::kFactoryV1;
  const std::string path = is_version_1 ? "peft_config." : "";
  const std::string layers = path + "freeze_trainable_layers";
  const std::string modules = path + "freeze_trainable_modules";
  const std::string extra = path + "freeze_extra_modules";
  freeze_all(run);
  std::string places;
  for (const std::int64_t layer : trained_layers(trainer, run, layers.c_str())) {
    places.append(places.empty() ? "" : "|").append(std::to_string(layer));
  }
  std::string names;
  for (const std::string& name : items_of(trainer.arguments, modules.c_str())) {
    if (name != "all") {
      names.append(names.empty() ? "" : "|").append(escaped(name));
    }
  }
  if (!places.empty()) {
    add_rule(run, modules, "\\.(" + places + ")\\." + (names.empty() ? "" : "(" + names + ")"),
             true);
  }
  for (const std::string& name : items_of(trainer.arguments, extra.c_str())) {
    add_rule(run, extra, escaped(name), true);
  }
}

// A model that is published with a tower is loaded as its text model alone or whole, or the
// program's auto class has no class for it.
enum class Loaded { kTextModel, kWhole, kNothing };
Loaded loaded_by(TrainerProject project, TowerKind kind) {
  if (project != TrainerProject::kTransformers && project != TrainerProject::kOpenInstruct) {
    return Loaded::kWhole;  // AutoModelForImageTextToText, or the class that config.json names
  }
  switch (kind) {  // AutoModelForCausalLM
    case TowerKind::kQwen:
    case TowerKind::kLlama4: return Loaded::kTextModel;
    case TowerKind::kSiglip:
    case TowerKind::kGemma4:
    case TowerKind::kGemma4Unified: return Loaded::kWhole;
    default: return Loaded::kNothing;
  }
}

// The words for both halves of a tower, the encoder and the projector, and whether silence freezes.
struct FreezeWords {
  const char* tower = nullptr;
  const char* projector = nullptr;
};
std::optional<FreezeWords> freeze_words(TrainerProject project) {
  switch (project) {
    case TrainerProject::kFactory:
      return FreezeWords{"freeze_vision_tower", "freeze_multi_modal_projector"};
    case TrainerProject::kSwift: return FreezeWords{"freeze_vit", "freeze_aligner"};
    default: return std::nullopt;
  }
}

// Frozen by the program, or trained as all that is not said to be frozen. With adapters the model's
// own parameters are frozen.
std::string tower_use(const TrainerFile& trainer, RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  const TrainerProject project = trainer.defaults.project;
  if (const std::optional<FreezeWords> words = freeze_words(project)) {
    for (const char* const word : {words->tower, words->projector}) {
      if (arguments.text_or(word, "true") == "false") {
        refuse(run, std::string(word) +
                        " false: parameters of the tower that ask for gradients, of which batches "
                        "of text give none; a frozen one is described");
      }
    }
    return project == TrainerProject::kSwift ? "frozen_floats" : "frozen";
  }
  const bool is_frozen = is_on(arguments, "freeze_mm_modules") || run.job.adapters.rank > 0;
  return is_frozen ? "frozen" : "trained";
}

// Which linear layers of the tower adapters stand on.
TowerTargets tower_targets(const TrainerFile& trainer, const RunReading& run) {
  const RunArguments& arguments = trainer.arguments;
  const TrainerProject project = trainer.defaults.project;
  if (run.job.adapters.rank == 0 || project == TrainerProject::kFactory) {
    return TowerTargets::kNone;  // patch_target_modules
  }
  const auto says = [&](const char* name) { return arguments.text_or(name, ""); };
  const std::string words = says("lora_target_modules") + says("target_modules") +
                            says("peft_config.target_modules") + says("lora_target");
  if (words.find("language_model") != std::string::npos) {
    return TowerTargets::kNone;
  }
  const bool is_all = is_on(arguments, "lora_target_linear") ||
                      words.find("all") != std::string::npos ||
                      (words.empty() && trainer.defaults.targets_all);
  if (!is_all) {
    return TowerTargets::kByName;
  }
  return project == TrainerProject::kSwift ? TowerTargets::kNone : TowerTargets::kAll;
}

// DDP does, unasked: around a model with a processor for pictures (LLaMA-Factory v1/core/
// base_trainer.py), and around peft's models, which are none of transformers' (transformers 5.17
// trainer.py _build_accelerator_args); axolotl and LLaMA-Factory say no.
bool looks_for_unused(const TrainerFile& trainer, const RunReading& run) {
  using enum TrainerProject;
  const TrainerProject project = trainer.defaults.project;
  const bool is_adapted = run.job.adapters.tower_targets != TowerTargets::kNone;
  return project == kFactoryV1 ||
         (is_adapted && (project == kTransformers || project == kTrl || project == kSwift));
}

void read_tower(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const TowerKind kind = run.job.model.tower.kind;
  if (kind == TowerKind::kNone) {
    return;
  }
  const std::string name = run.job.model.name;
  switch (loaded_by(trainer.defaults.project, kind)) {
    case Loaded::kTextModel: return;
    case Loaded::kNothing:
      refuse(run,
             "model " + name + ": AutoModelForCausalLM has no class for a model with its tower");
      return;
    case Loaded::kWhole: break;
  }
  want(run, "vision_tower", tower_use(trainer, run), library);
  run.job.adapters.tower_targets = tower_targets(trainer, run);
  if (looks_for_unused(trainer, run) && takes_word(run, "finds_unused", "true", library)) {
    want(run, "finds_unused", "true", library);
  }
  run.notes.push_back(trainer.file + ": " + std::string(trainer.defaults.name) + " loads " + name +
                      " with its tower for pictures or sound, which is counted; batches are taken "
                      "to be text alone; --set vision_tower=absent leaves it out");
  const std::string layers =
      trainer.arguments.text_or("fsdp_config.transformer_layer_cls_to_wrap", "") +
      trainer.arguments.text_or("fsdp_transformer_layer_cls_to_wrap", "");
  const bool names_tower =
      layers.find("Vision") != std::string::npos || layers.find("Siglip") != std::string::npos ||
      layers.find("Pixtral") != std::string::npos || layers.find("Encoder") != std::string::npos;
  if (!layers.empty() && !names_tower && takes_word(run, "fsdp_wraps_tower", "false", library)) {
    want(run, "fsdp_wraps_tower", "false", library);
  }
}

// LLaMA-Factory widens what is trained alone, and its first version recomputes no frozen layer.
void read_frozen(TrainerProject project, RunReading& run, const Library& library) {
  const bool is_first = project == TrainerProject::kFactory;
  if (is_first && takes_word(run, "checkpoints_frozen", "false", library)) {
    want(run, "checkpoints_frozen", "false", library);
  }
  if ((is_first || project == TrainerProject::kFactoryV1) &&
      takes_word(run, "narrow_frozen", "true", library)) {
    want(run, "narrow_frozen", "true", library);
  }
  if (project == TrainerProject::kFactoryV1 && !run.job.name_rules.empty() && run.plan.zero == 0) {
    refuse(run,
           "peft_config.name freeze without FSDP2: trained layers in fp32 take no inputs in bf16, "
           "which frozen ones give; dist_config.name fsdp2 over several GPUs is described");
  }
}

}  // namespace

bool trains_named_layers(const TrainerFile& trainer) {
  const RunArguments& arguments = trainer.arguments;
  return (trainer.defaults.project == TrainerProject::kFactory &&
          arguments.text_or("finetuning_type", "") == "freeze") ||
         (trainer.defaults.project == TrainerProject::kFactoryV1 &&
          arguments.text_or("peft_config.name", "") == "freeze");
}

bool read_target_pattern(const std::string& setting, const std::string& pattern, RunReading& run) {
  const bool is_pattern = pattern.find_first_of("*+()[]|\\") != std::string::npos;
  if (!is_pattern || !why_no_pattern(pattern).empty()) {
    return false;
  }
  // peft 0.21 tuners/tuners_utils.py check_target_module_exists: re.fullmatch of a module's name.
  constexpr std::array<std::string_view, 3> kPaths = {
      "model.language_model.layers.", "model.layers.", "language_model.model.layers."};
  const std::regex compiled(pattern);
  const std::int64_t layers = run.job.model.num_layers();
  std::vector<std::string> found;
  for (const std::string_view module : kLinearLayerNames) {
    const bool is_of_ffn = module == "gate_proj" || module == "up_proj" || module == "down_proj";
    std::int64_t matches = 0;
    for (std::int64_t layer = 0; layer < std::max<std::int64_t>(layers, 1); ++layer) {
      const std::string rest =
          std::to_string(layer) + (is_of_ffn ? ".mlp." : ".self_attn.") + std::string(module);
      matches += std::ranges::any_of(kPaths, [&](std::string_view path) {
        return std::regex_match(std::string(path) + rest, compiled);
      });
    }
    if (matches > 0) {
      found.emplace_back(module);
    }
    if (matches > 0 && matches < layers) {
      refuse(run, setting + " " + shown(pattern, Encoding::kUnchecked) + ": adapters on " +
                      std::to_string(matches) + " of " + std::to_string(layers) +
                      " layers; those on all of them are described");
    }
  }
  if (found.empty()) {
    return false;
  }
  set_targets(run.job.adapters, targets_named(found));
  return true;
}

void read_parts(const TrainerFile& trainer, RunReading& run, const Library& library) {
  const TrainerProject project = trainer.defaults.project;
  if (run.job.model.layers.empty()) {  // not known
    return;
  }
  read_tower(trainer, run, library);
  if (project == TrainerProject::kAxolotl) {
    read_unfrozen(trainer, run);
  } else if (project == TrainerProject::kSwift) {
    read_swift_names(trainer, run);
  } else if (trains_named_layers(trainer)) {
    read_named_layers(trainer, run);
  } else if (trains_blocks(trainer)) {
    freeze_all(run);
    add_rule(run, "use_badam", "\\.layers\\." + std::to_string(fullest_block(trainer)) + "\\.",
             true);
  } else if (is_on(trainer.arguments, "use_llama_pro")) {
    refuse(run, "use_llama_pro true: with finetuning_type freeze it is described");
  }
  if (is_on(trainer.arguments, "ddp_find_unused_parameters") &&
      takes_word(run, "finds_unused", "true", library)) {
    want(run, "finds_unused", "true", library);
  }
  const bool has_frozen =
      !run.job.name_rules.empty() || run.job.profile.vision_tower != TowerUse::kAbsent;
  if (run.job.adapters.rank == 0 && has_frozen) {
    read_frozen(project, run, library);
  }
}

}  // namespace shardplan
