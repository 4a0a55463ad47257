// Every call of a CUDA library goes through its CHECK: a failed call becomes an exception that
// keeps the call, the file and the line. Out of memory is told apart: it is an outcome, not a
// mistake.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace shardplan {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const char* call, const char* file, int line)
      : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                           cudaGetErrorString(code)),
        code_(code) {}
  cudaError_t code() const { return code_; }
  bool is_out_of_memory() const { return code_ == cudaErrorMemoryAllocation; }

 private:
  cudaError_t code_;
};

// cudaGetLastError clears an error that is not sticky, so the next check does not see it again.
inline void check_cuda(cudaError_t code, const char* call, const char* file, int line) {
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw CudaError(code, call, file, line);
  }
}

}  // namespace shardplan

#define CUDA_CHECK(call) ::shardplan::check_cuda((call), #call, __FILE__, __LINE__)
