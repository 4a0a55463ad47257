// What both kinds of `shardplan calibrate` share: which file is written again, where its values
// come from, and the cluster file of the host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/read/library.h"
#include "tools/commands/command.h"
#include "tools/options/options.h"
#include "tools/report/output.h"

namespace shardplan {

// The text of the GPU file that --gpu names, shipped or by path.
std::string gpu_file_of(const Options& options, const Library& library);

// Of GPUs that ran the same product at once, FLOP/s by GPU, the one that the others wait for in a
// step of all of them.
struct SlowestGpu {
  std::int64_t gpu = 0;
  std::string text;     // the rates of all, "GPU 3 is the slowest"
  std::string warning;  // empty unless it is far behind: a straggler, which holds up every plan
};
// flops_per_s: one at least.
SlowestGpu slowest_gpu(const std::vector<double>& flops_per_s);

// "shardplan calibrate ARGUMENTS, version V, DATE: MACHINE".
std::string calibration_source(const Arguments& arguments, const std::string& machine);

// The GPU's file to --out and, where that is given, the cluster's to --cluster-out. Made before
// anything is measured: what cannot be written is known at once.
class CalibrationFiles {
 public:
  explicit CalibrationFiles(const Options& options);
  void write(const std::string& gpu_file, std::int64_t num_gpus, const std::string& source);

 private:
  Output gpu_;
  std::optional<Output> cluster_;
};

}  // namespace shardplan
