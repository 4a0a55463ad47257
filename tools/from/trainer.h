// A training of transformers' Trainer: a script's arguments, TRL's, LLaMA-Factory's, axolotl's or
// ms-swift's file, and the configurations of DeepSpeed, FSDP and accelerate that they name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "data/read/library.h"

namespace shardplan {

// A file by the name that another one, at `path`, has for it: as it stands, beside that one or seen
// from a folder above it, as from the root of a repository; "" if it is nowhere.
std::string file_beside(const std::string& name, const std::string& path);

struct TrainerWords {
  std::vector<Setting> own;                    // by name, with "true" and "false" for switches
  std::vector<Setting> launcher = {};          // of accelerate, as its file has them
  std::optional<TrainerProject> project = {};  // of its command; else what the names say
  std::string file;                            // as messages name it
  std::string path;                            // where the files that it names are looked for
};

// Whether a file with settings of these names is one of a Trainer's, and whose.
bool is_of_trainer(const std::vector<Setting>& settings);

// The program whose names these are.
TrainerProject project_of(const std::vector<Setting>& own);

// `deepspeed` and `fsdp_config` name files, which are looked for where they say, beside the file
// and in the folders above it; InputError where they are not there.
RunSettings settings_of_trainer(TrainerWords words);

// Adds what --set deepspeed=FILE and --set fsdp_config=FILE name.
void add_configuration(std::vector<Setting>& own, const std::vector<std::string>& set_words);

// transformers' fsdp_config alone, or ms-swift's with it, of a run without other settings.
RunSettings settings_of_fsdp(const JsonValue& value, const std::string& file);

// DeepSpeed's configuration, which the setting names.
RunSettings deepspeed_settings(const Setting& named, const std::string& path);

// "fsdp_config.fsdp_version" and "fsdp_config.version" are one setting (transformers 5.17
// training_args.py, _process_fsdp_args; axolotl utils/schemas/validation.py).
std::string without_fsdp(const std::string& name);

// The config.json of the folder that a file names as its model; "" where none lies there.
std::string configuration_beside(const Setting& model_name, const std::string& file);
InputError unknown_model(const Setting& model_name);

}  // namespace shardplan
