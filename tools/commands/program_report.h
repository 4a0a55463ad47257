// What our own trainer would do with a plan, from the program that it would run: its tensors beside
// the rows of the estimate, and its memory over time.
#pragma once

#include <string>

#include "tools/commands/prediction.h"
#include "tools/options/question.h"
#include "tools/report/table.h"
#include "validator/program/program.h"

namespace shardplan {

// The question with no more microbatches than say everything, 64 or so: a step that fills and
// empties the pipeline as that of all does. An InputError that names the option under gpipe, which
// keeps the activations of all.
Question with_few_microbatches(const Question& question, const std::string& option);

// Of the fullest stage's first rank. An InputError that names the option
// where the framework is another one, or where the plan has no program; logic_error where the plan
// is invalid.
Program program_of(const Question& question, const Prediction& prediction,
                   const std::string& option);

// Bytes by name at the peak, estimate and program side by side, and the sizes of the arenas.
std::string program_text(const StageMemory& stage, const Program& program);

// One row per operation: where it belongs, all bytes alive, and those of every name.
Table memory_timeline(const Program& program);

}  // namespace shardplan
