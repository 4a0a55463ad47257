// The command line of bench_training; --help prints it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gemm/choices.h"
#include "validator/cuda/backend.h"

namespace shardplan {

struct TrainingOptions {
  std::string file = {};  // "": the table
  std::string gpu = "H200-SXM-141GB";
  std::int64_t num_gpus = 0;  // 0: all here
  double seconds = 30;
  double gemm_seconds = -1;  // 60 with the table, 0 with a file
  double minutes = 0;        // 0: no end
  std::string out = {};
  std::string limits = {};
  std::string commit = {};
  bool profiles = false;
  bool stands_in = false;  // for GPUs that are missing
  int candidates = 0;      // of every product; 0: no tuning
  std::string products = gemm_choices_path();
  AttentionKernels attention = AttentionKernels::kFastest;
  Collectives collectives = Collectives::kFastest;
};

extern const std::string_view kTrainingUsage;

// Throws InputError.
TrainingOptions training_options(const std::vector<std::string_view>& words);
std::string training_command(const std::vector<std::string_view>& words);

}  // namespace shardplan
