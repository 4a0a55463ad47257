// The run that a user already has, read from its files: a shell script, a test configuration in
// YAML, a list of arguments in JSON, a torchtitan configuration in TOML.
#pragma once

#include <string>

#include "data/run_settings.h"

namespace shardplan {

// By the ending of its name: .sh (also .slurm, .sbatch, .bash), .yaml, .json, .toml. InputError for
// what cannot be read. `notes` receives a line for each thing that was taken with a guess.
RunSettings settings_from_file(const std::string& path, std::vector<std::string>& notes);

RunSettings settings_from_shell(const std::string& text, const std::string& file,
                                std::vector<std::string>& notes);
RunSettings settings_from_yaml(const std::string& text, const std::string& file);
RunSettings settings_from_toml(const std::string& text, const std::string& file);
RunSettings settings_from_json(const std::string& text, const std::string& file);

// --set NAME=VALUE for an argument of the file: "vocab-size=128256" (or with its dashes, as
// "--bf16"), "training.seq_len=4096". Names of options and of plan fields have neither '-' nor '.'.
bool is_run_setting(const RunSettings& settings, const std::string& name);
void override_setting(RunSettings& settings, const std::string& word);

}  // namespace shardplan
