// The rate of products that the power of a GPU allows: one large product again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace shardplan {

struct SustainedRate {
  double seconds = 0;              // that it lasted
  double flops_per_s = 0;          // of all of it
  double settled_flops_per_s = 0;  // of its second half
};

// bf16, 16384 x 28672 x 4096 (rows, out, in: what an 8B model multiplies most), random data, on the
// current device; the algorithm chosen for it, else cuBLASLt's. `report` hears of every second.
SustainedRate sustained_gemm(const GemmChoices& choices, double seconds, cudaStream_t stream,
                             const std::function<void(double flops_per_s)>& report = {});

// The same on the first GPUs of this machine, all at once.
std::vector<SustainedRate> sustained_on_gpus(const GemmChoices& choices, double seconds,
                                             std::int64_t num_gpus);

}  // namespace shardplan
