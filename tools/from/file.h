// The run that a user already has, read from its files: a shell script, a test configuration in
// YAML, a list of arguments in JSON, a torchtitan configuration in TOML, its log.
#pragma once

#include <optional>
#include <string>

#include "data/arguments/run_settings.h"
#include "data/read/text_file.h"

namespace shardplan {

// What the user says beside a script; set_words beside a YAML file, too.
struct ScriptRequest {
  std::vector<std::string> set_words = {};  // NAME=VALUE; variables of the script, "1" its first
                                            // argument
  std::int64_t line = 0;                    // where the training begins; 0: it has one
  std::string path = {};          // beside which other scripts are looked for; "": nowhere
  std::int64_t num_gpus = 0;      // whatever the launcher's number is; 0: the launcher's
  std::int64_t cluster_gpus = 0;  // where the script leaves the number open and may mean this one
  std::int64_t node_gpus = 0;     // --nproc_per_node=gpu: of the cluster; 0: not known
};

// By the ending of its name: .sh (also .slurm, .sbatch, .bash), .yaml, .json, .toml, any other for
// a log; behind a script may stand ":LINE", where the training meant begins. InputError for what
// cannot be read.
// `notes` receives a line for each thing that was taken with a guess. Of `request` line and path
// are those of `path`.
RunSettings settings_from_file(const std::string& path, std::vector<std::string>& notes,
                               ScriptRequest request, const Library& library);

RunSettings settings_from_json(const std::string& text, const std::string& file);

// What --set NAME means in a run's file, as the file writes it: "seq-length", "seq_length" and
// "--seq-length" are the argument --seq-length, "training.seq-len" is training.seq_len. "" if
// neither `table` nor the file has such an argument.
std::string argument_named(const RunSettings& settings, const ArgumentTable& table,
                           const std::string& name);
// Puts `setting` in place of what the file says: by the argument's own name (argument_named), with
// one value as text, none for a switch. Several values in it are divided by commas or blanks; an
// empty one leaves the argument out, "false" a switch of Megatron-LM.
void override_setting(RunSettings& settings, const ArgumentTable& table, Setting setting);

}  // namespace shardplan
