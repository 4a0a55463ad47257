// Which kernel, product or collective every operation of a program is on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "validator/cuda_rank.h"

namespace shardplan {

void fill_zero(const DeviceView& view, cudaStream_t stream);

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
  bool launch_movement(const Call& call) const;
  bool launch_block(const Call& call) const;
  bool launch_attention(const Call& call) const;
  bool launch_loss(const Call& call) const;
  bool launch_collective(const Call& call) const;
  bool launch_update(const Call& call) const;

  void copy(const Call& call) const;
  void rotate(const Call& call) const;
  void norm_backward(const Call& call) const;
  void attend_backward(const Call& call) const;
  void update(const Call& call) const;

  const CudaRank& rank_;
  std::int64_t step_;
  double learning_rate_;
};

}  // namespace shardplan
