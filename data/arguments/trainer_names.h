// Which parameters a Trainer's run trains, by their names (Job::name_rules).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/arguments/trainer.h"

namespace shardplan {

// A list's items, as YAML and command lines write it.
std::vector<std::string> items_of(const RunArguments& arguments, const char* name);

// The expression that finds the text as it is.
std::string escaped(std::string_view text);

void freeze_all(RunReading& run);
// Adds the rule that `pattern` trains or freezes; refuses a pattern that is no expression.
void add_rule(RunReading& run, const std::string& setting, const std::string& pattern, bool trains);

// axolotl's unfrozen_parameters.
void read_unfrozen(const TrainerFile& trainer, RunReading& run);
// ms-swift's freeze_parameters and trainable_parameters, and its LLaMA Pro, which makes the model
// longer.
void read_swift_names(const TrainerFile& trainer, RunReading& run);

}  // namespace shardplan
