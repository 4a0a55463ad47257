// A training of transformers' Trainer under DeepSpeed: a script's arguments, TRL's, LLaMA-Factory's
// or axolotl's YAML, and the DeepSpeed configuration that they name; accelerate's of DeepSpeed.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"

namespace shardplan {

// A file by the name that another one, at `path`, has for it: as it stands, beside that one or seen
// from a folder above it, as from the root of a repository; "" if it is nowhere.
std::string file_beside(const std::string& name, const std::string& path);

// `own`: by name, with "true" and "false" for switches. `deepspeed` names the configuration, which
// is looked for where it says, beside the file and in the folders above it. InputError where it is
// not there or none is named.
RunSettings settings_of_trainer(std::vector<Setting> own, const std::string& file,
                                const std::string& path);

// A run of DeepSpeed without settings, around the model that a Trainer's settings name.
RunSettings settings_with_model(const std::vector<Setting>& own, const std::string& file);

// accelerate's deepspeed_config, as settings of DeepSpeed.
RunSettings settings_of_accelerate(const std::vector<Setting>& own, const std::string& file,
                                   const std::string& path);

// The model that a file trains by its published name or by its folder, as preset or path.
// InputError where the library has none of that name.
std::string named_model(const Setting& model_name, const std::string& file, const Library& library);

}  // namespace shardplan
