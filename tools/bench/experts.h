// Kernels of mixtures of experts.
#pragma once

#include "tools/bench/kernels.h"

namespace shardplan {

// What a mixture of experts adds: router, rows, exchange on one GPU, grouped products.
void bench_experts(Bench& bench);
void bench_grouped(cudaStream_t stream);

}  // namespace shardplan
