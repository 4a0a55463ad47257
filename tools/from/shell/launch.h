// The trainings that a shell script starts: a program in Python, its arguments, and how many GPUs
// its launcher gives it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/from/shell/words.h"

namespace shardplan {

struct Launch {
  std::vector<std::string> launcher;  // torchrun --nproc_per_node 8
  std::string program;                // "pretrain_gpt.py", or a module: "torchtitan.train"
  std::vector<std::string> arguments;
  std::string place;  // "run.sh:12"
  std::int64_t line = 1;
  std::int64_t num_gpus = 0;    // 0: not stated
  std::string open_ranks = {};  // "--nnodes $N": what states it without a known number; else ""
  std::map<std::string, std::string> environment;
};

// The commands that start a Python program with arguments and train: with an argument of a model's
// or a plan's sizes. In order, the same one once; all if none has one. `node_gpus`: of a node, for
// a launcher that starts as many ranks there; 0: not known.
std::vector<Launch> trainings_of(const ShellScript& script, std::int64_t node_gpus);

// Whether one of the words is an argument that only a training has, such as --num-layers.
bool has_training_argument(const std::vector<std::string>& words);

// #SBATCH --nodes=4 and its like, by the variables that Slurm makes of them: SLURM_NNODES, ...
std::map<std::string, std::string> slurm_variables(const std::string& script,
                                                   const std::string& file);

}  // namespace shardplan
