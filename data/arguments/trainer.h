// What a training by transformers' Trainer, or by a program around it, says whatever divides the
// model over GPUs: DeepSpeed, FSDP, or nothing.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "data/arguments/arguments.h"
#include "data/arguments/run_settings.h"
#include "data/arguments/trainer_projects.h"

namespace shardplan {

// The settings of such a training, by name, with the defaults of its program.
struct TrainerFile {
  const RunArguments& arguments;
  const std::string& file;  // as messages name it
  const ProjectDefaults& defaults;
};

// Names of settings that say how long sequences are, the first that a run has counts.
std::span<const char* const> length_settings();

// Whether the settings, or the program's default for the model, say how long sequences are.
bool says_sequence_length(const RunSettings& settings, const Library& library);

// "" or the reason why no such training is described, which needs neither model nor sharding.
std::string why_no_training(const TrainerFile& trainer);

// "true", as YAML and scripts write it.
bool is_on(const RunArguments& arguments, const char* name);
// "adamw_torch" or "finetuning_type lora, LLaMA-Factory's default": one setting as messages have
// it.
std::string shown_setting(const RunArguments& arguments, const char* name);

// Sequences of a microbatch, and microbatches of each of `ranks`; nothing where not stated.
std::optional<std::int64_t> micro_batch_of(const TrainerFile& trainer);
std::int64_t steps_of(const TrainerFile& trainer, std::int64_t micro_batch, std::int64_t ranks);

// LLaMA-Factory's version 1 may lay the texts of a microbatch behind each other in one row. Called
// behind what reads the batch.
void read_rows(const TrainerFile& trainer, RunReading& run, const Library& library);

// Recomputation, length, adapters, quantization and optimizer; what is not described is refused.
void read_trainer(const TrainerFile& trainer, RunReading& run);

// Moonshot's Muon, of which LLaMA-Factory and ms-swift have copies.
bool uses_muon(const TrainerFile& trainer);

// Adapters, not all parameters.
bool trains_adapters(const TrainerFile& trainer);

// The first of `names` that is on, else nullptr.
const char* first_on(const RunArguments& arguments, std::initializer_list<const char*> names);
// The first that is set at all.
const char* first_set(const RunArguments& arguments, std::initializer_list<const char*> names);

}  // namespace shardplan
