// Which kernel, product or collective every operation of a program is on a GPU.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/experts/exchange.h"
#include "validator/cuda/rank.h"

namespace shardplan {

template <class T>
struct DeviceType {
  using type = T;
};

// body(DeviceType<float>) or body(DeviceType<__nv_bfloat16>).
template <class Body>
void with_device_type(DType dtype, const Body& body) {
  if (dtype == DType::kFp32) {
    body(DeviceType<float>{});
  } else if (dtype == DType::kBf16) {
    body(DeviceType<__nv_bfloat16>{});
  } else {
    throw std::logic_error("cuda: no kernel for " + std::string(name_of(dtype)));
  }
}

// body(type, gradient): gradients of float are float, those of bf16 either.
template <class Body>
void with_gradient_type(DType dtype, DType gradient, const Body& body) {
  if (dtype == DType::kFp32) {
    body(DeviceType<float>{}, DeviceType<float>{});
  } else if (gradient == DType::kFp32) {
    body(DeviceType<__nv_bfloat16>{}, DeviceType<float>{});
  } else {
    body(DeviceType<__nv_bfloat16>{}, DeviceType<__nv_bfloat16>{});
  }
}

void fill_zero(const DeviceView& view, cudaStream_t stream);
float as_float(double value);

class OperationLauncher {
 public:
  OperationLauncher(const CudaRank& rank, std::int64_t step, double learning_rate)
      : rank_(rank), step_(step), learning_rate_(learning_rate) {}

  // Throws std::logic_error, naming rank and operation, for what has no kernel.
  void launch(std::int64_t operation) const;

 private:
  struct Call {
    const Operation& op;
    std::int64_t index;
    std::vector<DeviceView> in;
    std::vector<DeviceView> out;
    cudaStream_t stream;
  };

  [[noreturn]] void refuse(const Call& call, const char* why) const;
  void* scratch() const { return rank_.scratch_.data; }

  // By family; whether the operation is of it.
  bool launch_movement(const Call& call) const;    // data_movement.cpp
  bool launch_collective(const Call& call) const;  // data_movement.cpp
  bool launch_attention(const Call& call) const;   // attention.cpp
  bool launch_experts(const Call& call) const;     // experts.cpp
  bool launch_exchange(const Call& call) const;    // experts.cpp
  bool launch_block(const Call& call) const;
  bool launch_loss(const Call& call) const;
  bool launch_update(const Call& call) const;

  void rotate(const Call& call) const;
  void norm_backward(const Call& call) const;
  void embedding_gradient(const Call& call) const;
  void update(const Call& call) const;

  // data_movement.cpp
  void copy(const Call& call) const;
  void add_parts(const Call& call) const;
  bool copy_among(CudaPeers& peers, const Call& call) const;
  void keep_own_share(const Call& call) const;

  // fp8.cpp
  void multiply_in_fp8(const Call& call) const;

  // experts.cpp
  void place_rows(const Call& call) const;
  void weight_gradients(const Call& call) const;
  void exchange_rows(const Call& call) const;
  template <class T>
  MemberPointers<T> of_members(const Call& call, const DeviceView& view) const;

  const CudaRank& rank_;
  std::int64_t step_;
  double learning_rate_;
};

}  // namespace shardplan
