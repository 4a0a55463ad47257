// Configurations in YAML: Megatron-LM's, nanotron's, those of transformers' Trainer.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"

namespace shardplan {

// ${NAME} and $NAME are what `set_words` (NAME=VALUE) say, else stay as they are.
RunSettings settings_from_yaml(const std::string& text, const std::string& file,
                               const std::vector<std::string>& set_words = {});
// accelerate's configuration, and nothing else.
RunSettings settings_from_accelerate(const std::string& text, const std::string& file);

}  // namespace shardplan
