#include "data/arguments/trainer_projects.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace shardplan {
namespace {

// transformers 5.17 training_args.py; its fsdp_config is of version 2 since 5.14. TRL f2cd577
// trainer/base_config.py, sft_config.py, model_config.py. LLaMA-Factory ff6d4d1 hparams, which
// installs accelerate up to 1.11 and transformers up to 5.8 (pyproject.toml). axolotl 067b021
// utils/schemas, utils/config normalize_config, loaders/model.py, with accelerate 1.13. ms-swift
// 3602360 swift/trainers/arguments.py, swift/arguments. LLaMA-Factory's version 1:
// src/llamafactory/v1/config, plugins/model_plugins/peft.py. open-instruct
// open_instruct/finetune.py.
constexpr std::array<ProjectDefaults, 7> kProjects = {{
    {.project = TrainerProject::kTransformers, .name = "transformers", .length_name = "max_length"},
    {.project = TrainerProject::kTrl,
     .name = "TRL",
     .length_name = "max_length",
     .length = 1024,
     .is_bf16 = true,
     .recomputes = true,
     .lora_rank = 16,
     .lora_dropout = 0.05},
    {.project = TrainerProject::kFactory,
     .name = "LLaMA-Factory",
     .length_name = "cutoff_len",
     .length = 2048,
     .recomputes = true,
     .reentrant = true,
     .targets_all = true,
     .double_quantizes = true,
     .stores_floats = true,
     .fsdp_version = 1,
     .fsdp_upcast = "all",
     .fsdp_ends = "root"},
    {.project = TrainerProject::kFactoryV1,
     .name = "LLaMA-Factory's version 1",
     .micro_batch = 1,
     .length_name = "cutoff_len",
     .length = 2048,
     .is_bf16 = true,
     .recomputes = true,
     .lora_dropout = 0.05,
     .targets_all = true,
     .double_quantizes = true,
     .stores_floats = true,
     .fsdp_upcast = "none",
     .fsdp_ends = "embedding_apart"},
    {.project = TrainerProject::kAxolotl,
     .name = "axolotl",
     .micro_batch = 1,
     .length_name = "sequence_len",
     .length = 512,
     .is_bf16 = true,
     .reentrant = true,
     .double_quantizes = true,
     .stores_floats = true,
     .fsdp_version = 1,
     .fsdp_upcast = "none",
     .fsdp_ends = "root"},
    {.project = TrainerProject::kSwift,
     .name = "ms-swift",
     .micro_batch = 1,
     .length_name = "max_length",
     .length_is_positions = true,
     .is_bf16 = true,
     .recomputes = true,
     .lora_dropout = 0.05,
     .targets_all = true,
     .double_quantizes = true},
    {.project = TrainerProject::kOpenInstruct,
     .name = "open-instruct",
     .length_name = "max_seq_length",
     .lora_rank = 64,
     .lora_dropout = 0.1,
     .targets_all = true,
     .double_quantizes = true},
}};

}  // namespace

const ProjectDefaults& defaults_of(TrainerProject project) {
  const auto* const found = std::ranges::find(kProjects, project, &ProjectDefaults::project);
  if (found == kProjects.end()) {
    throw std::logic_error("defaults_of: unknown project");
  }
  return *found;
}

}  // namespace shardplan
