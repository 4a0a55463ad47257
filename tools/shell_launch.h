// The trainings that a shell script starts: a program in Python, its arguments, and how many GPUs
// its launcher gives it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/shell_words.h"

namespace shardplan {

struct Launch {
  std::vector<std::string> launcher;  // torchrun --nproc_per_node 8
  std::string program;                // "pretrain_gpt.py", or a module: "torchtitan.train"
  std::vector<std::string> arguments;
  std::string place;  // "run.sh:12"
  std::int64_t line = 1;
  std::int64_t num_gpus = 0;  // 0: not stated
  std::map<std::string, std::string> environment;
};

// Every command that starts a Python program with arguments, in order; the same one once.
std::vector<Launch> launches_of(const ShellScript& script);

// Those of them that train: with an argument of a model's or a plan's sizes. All if none has one.
std::vector<Launch> trainings_of(const ShellScript& script);

// A program that trains no GPT decoder, by a part of its name and of its path.
struct OtherProgram {
  std::string_view part;
  std::string_view folder = "";
  std::string_view what;
};
const OtherProgram* other_program(const std::string& word);  // nullptr: it may train one

// #SBATCH --nodes=4 and its like, by the variables that Slurm makes of them: SLURM_NNODES, ...
std::map<std::string, std::string> slurm_variables(const std::string& script);

}  // namespace shardplan
