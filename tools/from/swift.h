// A training of Megatron-SWIFT: `megatron sft` and `megatron pt`, whose arguments are the
// attributes of Megatron-LM's, around a model from Hugging Face or ModelScope.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "tools/from/shell/launch.h"
#include "tools/from/trainer.h"

namespace shardplan {

// "megatron sft", "megatron pt", "megatron rlhf": how such a launch names its program.
bool is_swift_program(const std::string& program);

// As arguments of Megatron-LM, behind ms-swift's defaults where they are others.
RunSettings settings_of_swift(const std::vector<Setting>& words, const std::string& file,
                              const Library& library, std::vector<std::string>& notes);

// "swift sft", "swift pt", "swift/cli/sft.py".
bool is_swift_trainer(const std::string& program);

// Behind a Trainer's settings stands what ms-swift has where they are silent; "zero2" and "zero3"
// are its configurations of DeepSpeed.
RunSettings settings_of_swift_trainer(TrainerWords words);

// A Trainer's settings of whichever program has these names.
RunSettings settings_of_program(TrainerWords words);

// The settings of a file of Megatron-SWIFT, which names Megatron's sizes.
bool is_of_megatron_swift(const std::vector<Setting>& own);
RunSettings settings_of_swift_file(const std::vector<Setting>& own, const std::string& file,
                                   const Library& library, std::vector<std::string>& notes);

}  // namespace shardplan
