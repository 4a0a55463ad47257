// Products and attention.
#pragma once

#include "tools/bench/kernels.h"

namespace shardplan {

// Rates of arithmetic: products and attention by library and by own kernels.
void bench_gemm(cudaStream_t stream);

void bench_sustained_gemm(cudaStream_t stream);
void bench_attentions(cudaStream_t stream);

}  // namespace shardplan
