// A supervised training of slime: Megatron-LM's arguments, with slime's own beside them.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "tools/from/shell/launch.h"

namespace shardplan {

// --loss-type sft_loss --debug-train-only: without rollouts, whatever else it says of them.
bool is_supervised_slime(const std::vector<std::string>& arguments);

// As arguments of Megatron-LM, behind what slime sets itself.
RunSettings settings_of_slime(const std::vector<Setting>& words, const std::string& file,
                              std::vector<std::string>& notes);

}  // namespace shardplan
