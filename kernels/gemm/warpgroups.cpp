#include "kernels/gemm/warpgroups.h"

#include <cuda_runtime_api.h>

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

int attribute(cudaDeviceAttr name) {
  int device = 0;
  int value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

}  // namespace

bool has_warpgroups() {
  return attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

bool has_fp8_products() {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
             attribute(cudaDevAttrComputeCapabilityMinor) >=
         89;
}

int num_multiprocessors() {
  return attribute(cudaDevAttrMultiProcessorCount);
}

}  // namespace shardplan
