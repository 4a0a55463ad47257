// Whether the program that a script starts is one whose arguments are read here.
#pragma once

#include <string>
#include <vector>

#include "data/arguments/run_settings.h"
#include "tools/from/shell/launch.h"

namespace shardplan {

bool is_other_program(const std::string& program);  // by its name trains no GPT decoder

// InputError for such a program.
void check_program(const Launch& launch);

// InputError for some other trainer: none of the arguments is one that a training of Megatron-LM or
// torchtitan has, and no variable in them nor a word of --set may be one.
void check_arguments(const Launch& launch, const std::vector<std::string>& set_words);

// What a script starts instead of a training that is read, and what to give instead: a sentence
// behind "found ", or "" if it is none of those known.
std::string other_trainer(const ShellScript& script);

// A program of another name is read as if it were Megatron-LM's.
void note_program(const Launch& launch, const RunSettings& settings,
                  std::vector<std::string>& notes);

}  // namespace shardplan
