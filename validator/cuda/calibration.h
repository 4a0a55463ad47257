// Microbenchmarks of `calibrate --time`: what products, attention, copies, launches and collectives
// take on this machine's GPUs. Random data; rates under the power that load leaves; medians.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// Grids and how long every point is measured.
struct TimeCalibration {
  std::int64_t num_gpus = 1;  // of this host, from device 0 on; collectives need two
  std::int64_t device = 0;    // where all is measured that takes one GPU
  double warm_up_s = 3;       // of one large product before the first point
  double seconds_per_point = 0.015;
  double clock_seconds = 0.4;  // a clock follows its load within some tens of milliseconds
  std::vector<std::int64_t> gemm_sizes = {256, 512, 1024, 2048, 4096, 8192, 16384};
  std::vector<std::int64_t> gemm_fp8_sizes = {1024, 2048, 4096, 8192, 16384};  // multiples of 16
  std::vector<std::int64_t> head_dims = {64, 128};
  std::vector<std::int64_t> lengths = {1024, 2048, 4096, 8192, 16384, 32768};
  std::int64_t attention_tokens = 16384;  // of one call, in sequences of the length
  std::int64_t few_heads = 8;             // of one sequence: attention that does not fill the GPU
  std::vector<std::int64_t> expert_rows = {128, 256, 512, 1024, 2048, 4096};
  std::vector<std::int64_t> message_bytes = {1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22,
                                             1 << 24, 1 << 26, 1 << 28, 1 << 30};
};

// The whole of MeasuredTimes but its source. `report` is told of every part as it ends.
MeasuredTimes measure_times(const TimeCalibration& calibration,
                            const std::function<void(const std::string&)>& report);

// Every side at these sizes, without rates.
GemmGrid grid_over(const std::vector<std::int64_t>& sizes);
// rate(m, n, k) over all sizes of m, n and k, as a GemmGrid has them: k fastest.
std::vector<double> rates_over(
    const std::vector<std::int64_t>& sizes,
    const std::function<double(std::int64_t, std::int64_t, std::int64_t)>& rate);

// GPU, driver, CUDA, cuBLAS, attention library and NCCL, as far as they say.
std::string calibrated_machine();
std::int64_t num_gpus_here();  // 0 where there is no driver either

}  // namespace shardplan
