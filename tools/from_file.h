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

// What --set NAME means in a run's file, as the file writes it: "seq-length", "seq_length" and
// "--seq-length" are the argument --seq-length, "training.seq-len" is training.seq_len. "" if
// neither `table` nor the file has such an argument.
std::string argument_named(const RunSettings& settings, const ArgumentTable& table,
                           const std::string& name);
// Puts NAME=VALUE over what the file says; `argument`: argument_named of NAME. Several values are
// divided by commas or blanks; "false" takes a switch of Megatron-LM away, nothing a list.
void override_setting(RunSettings& settings, const ArgumentTable& table,
                      const std::string& argument, const std::string& word);

}  // namespace shardplan
