// The command line of bench_training:
//   usage: bench_training [CASES.jsonl] [--gpu NAME|FILE] [--gpus N] [--seconds 30]
//                         [--gemm-seconds 60] [--minutes M] [--out FILE] [--limits FILE]
//                         [--commit ID] [--profile] [--tune N] [--products FILE]
//                         [--attention fastest|own] [--collectives fastest|nccl]
// Without a file of case lines: the table for the GPUs here, or for N of them
// (tools/training_table.h).
// --gpu           whose measured rates the limits rest on: what calibrate --time wrote on this
//                 machine; default H200-SXM-141GB. A file of cases names its GPUs itself
// --seconds       of measured steps of every case, five steps at least
// --gemm-seconds  of a product on all GPUs at once before the first case and after the last: the
//                 sustained rate of the roofline; 0: none, the default with a file
// --minutes       begins no case that would not end by then; the same command goes on
// --out           result lines, one at a time; cases that are there are not run again
// --limits        the limits as CSV, before anything runs
// --commit        what was built, for the record; default: what git says here
// --profile       one more step, operation by operation, on the rank whose losses are itemised
// --tune          first chooses the fastest of N algorithms of cuBLASLt for every product that FILE
//                 lacks, and adds the choices to it; 0.4 s for each algorithm
// --products      the file of choices, else $SHARDPLAN_PRODUCTS or shardplan/products in
//                 $XDG_CACHE_HOME; products that it lacks run as cuBLASLt suggests
// --collectives   nccl: also those of tensor and context parallelism that copy engines can serve
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gemm_choices.h"
#include "validator/cuda_backend.h"

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
  int candidates = 0;  // of every product; 0: no tuning
  std::string products = gemm_choices_path();
  AttentionKernels attention = AttentionKernels::kFastest;
  Collectives collectives = Collectives::kFastest;
};

// Throws std::invalid_argument.
TrainingOptions training_options(const std::vector<std::string_view>& words);
std::string training_command(const std::vector<std::string_view>& words);

}  // namespace shardplan
