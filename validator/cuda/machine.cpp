#include "validator/cuda/machine.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <fstream>

#include "kernels/gemm/gemm.h"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

// The kernel module says which it is: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04
// ...". The first word of that line that begins with a digit.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.front() >= '0' && word.front() <= '9') {
      return word;
    }
  }
  return "unknown";
}

std::string cuda_version(int version) {  // 13000 is 13.0
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string nccl_version() {  // 22809 is 2.28.9
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) {
    return "unknown";
  }
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

std::string machine_description(int device) {
  cudaDeviceProp properties = {};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  int runtime = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  return std::string(properties.name) + ", driver " + driver_version() + ", CUDA " +
         cuda_version(runtime) + ", cuBLAS " + GemmLibrary::version() + ", NCCL " + nccl_version();
}

}  // namespace shardplan
