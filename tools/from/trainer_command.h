// Commands that start a Trainer: `trl sft`, `swift sft`, `llamafactory-cli train`, `axolotl train`,
// and scripts in Python.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "tools/from/shell/launch.h"

namespace shardplan {

// "trl sft".
bool is_trl_program(const std::string& program);

// Whether a program of TRL or ms-swift trains by preferences or rewards, which its name says.
bool trains_by_preferences(const std::string& program);
// Adds what such a program trains for, where no setting says it: trl_task of TRL's, rlhf_type of
// ms-swift's.
void add_task(const Launch& launch, std::vector<Setting>& own);

// Whether the command's arguments are a Trainer's, of whichever program.
bool starts_trainer(const Launch& launch);

// Whose Trainer the command starts, where it says so and not only its arguments.
std::optional<TrainerProject> project_of_command(const Launch& launch,
                                                 const std::vector<Setting>& own);

// The first of two words that are a command which starts a Trainer itself, and the GPUs' ranks with
// it, among the first of `words`; the end where none is. Behind it stands "sft", "train", ...
std::vector<std::string>::const_iterator trainer_command(const std::vector<std::string>& words);

}  // namespace shardplan
