// What one training that a script starts says: its settings, in its framework's words.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"
#include "tools/from/shell/launch.h"

namespace shardplan {

// Arguments of Megatron-LM, or of torchtitan with the file behind --job.config_file under them;
// that is looked for as it stands, beside the script `path` and in the folders above it. `file`:
// the script as messages name it. InputError for words that are no arguments and for a
// configuration that is not there.
RunSettings settings_of_launch(const Launch& launch, const std::string& file,
                               const std::string& path, const Library& library,
                               std::vector<std::string>& notes);

// "llamafactory-cli train sft.yaml", "src/train.py sft.yaml", "sft.py --config sft.yaml": the file
// that is the training; "" where none is.
std::string configuration_of(const Launch& launch);

bool is_yaml_name(const std::string& word);      // "sft.yaml", "sft.yml"
bool is_argument_name(const std::string& word);  // "--bf16"

}  // namespace shardplan
