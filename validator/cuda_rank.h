// One rank's program on one GPU: two arenas, one CUDA stream for every stream of the program, one
// communicator for every group. Nothing is allocated after construction.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/gemm.h"
#include "validator/cuda_communicator.h"
#include "validator/program.h"

namespace shardplan {

// The same program with fp32 wherever it has bf16, at twice the bytes: what parity is checked with.
Program widened(Program program);

// A View on device memory.
struct DeviceView {
  void* data = nullptr;  // nullptr: absent
  DType dtype = DType::kBf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  bool present() const { return data != nullptr; }
  std::int64_t elements() const { return rows * cols; }
  bool contiguous() const { return stride == cols || rows == 1; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

class CudaRank {
 public:
  // Communicators by index of Program::groups. Throws CudaError where memory is short, and
  // std::logic_error, naming the operation, for what has no kernel yet.
  CudaRank(Program program, int device, std::vector<std::unique_ptr<CudaCommunicator>> groups);
  ~CudaRank();
  CudaRank(const CudaRank&) = delete;
  CudaRank& operator=(const CudaRank&) = delete;

  const Program& program() const { return program_; }
  DeviceView whole(std::int64_t tensor) const;
  DeviceView elements(std::int64_t tensor, std::int64_t first, std::int64_t count) const;
  void use_device() const;  // before any other call from a new thread

  // Persistent memory becomes zero.
  void clear();
  // Launches every operation of the program; the caller synchronises.
  void launch_step(std::int64_t step, double learning_rate);
  void synchronize() const;

  // Scratch of the kernels and of cuBLASLt, beside the arenas.
  std::int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  friend class OperationLauncher;

  DeviceView resolve(const View& view) const;
  void prepare_products();
  void prepare_tables();
  std::int64_t largest_scratch() const;

  Program program_;
  int device_;
  std::vector<std::unique_ptr<CudaCommunicator>> groups_;
  char* arenas_[2] = {nullptr, nullptr};
  char* scratch_ = nullptr;
  std::int64_t scratch_bytes_ = 0;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::unique_ptr<GemmLibrary> library_;
  std::map<std::int64_t, std::unique_ptr<Gemm>> products_;  // by operation
  DeviceView rotary_table_;
};

}  // namespace shardplan
