// Configurations in YAML: Megatron-LM's, nanotron's, those of transformers' Trainer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "data/arguments/run_settings.h"

namespace shardplan {

// ${NAME} and $NAME are what `set_words` (NAME=VALUE) say, else stay as they are.
RunSettings settings_from_yaml(const std::string& text, const std::string& file,
                               const std::vector<std::string>& set_words = {});
// How many ranks the sizes of these names take together, 0 where one is no such number.
std::int64_t num_ranks(const std::vector<Setting>& settings,
                       std::initializer_list<std::string_view> sizes);
// accelerate's configuration, and nothing else, by path: "fsdp_config.fsdp_version".
std::vector<Setting> accelerate_file(const std::string& text, const std::string& file);
// A mapping that is neither accelerate's, Megatron-LM's nor nanotron's, by path; nothing where it
// is. `variables` receives every ${NAME}.
std::vector<Setting> trainer_file(const std::string& text, const std::string& file,
                                  const std::vector<std::string>& set_words,
                                  std::vector<std::string>& variables);

}  // namespace shardplan
