// What a run on this machine's GPUs rests on.
#pragma once

#include <string>

namespace shardplan {

// One line: "NVIDIA H200, driver 580.159.04, CUDA 13.0, cuBLAS 13.1.0, NCCL 2.28.9". Throws
// CudaError.
std::string machine_description(int device);

}  // namespace shardplan
