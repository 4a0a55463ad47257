// One attention on random data, forward and backward, for whoever takes its time.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/call.h"
#include "kernels/pointwise/device_buffer.h"

namespace shardplan {

class AttentionTrial {
 public:
  // q, k and v lie side by side in one row, as their gradients do: of `shape` no stride is read.
  // The last query sees the last key.
  AttentionTrial(const AttentionLibrary& library, const AttentionShape& shape, AttentionOrder order,
                 cudaStream_t stream);

  const AttentionForward& forward() const { return forward_; }
  const AttentionBackward& backward() const { return backward_; }
  void run_forward(cudaStream_t stream);
  void run_backward(cudaStream_t stream);  // of the last run_forward

  // Of what the mask leaves, the diagonal by half: two products; five of them backward.
  double forward_flops() const;
  double backward_flops() const { return 2.5 * forward_flops(); }

 private:
  AttentionShape shape_;
  AttentionForward forward_;
  AttentionBackward backward_;
  DeviceBuffer<__nv_bfloat16> qkv_, dqkv_, o_, dout_;
  DeviceBuffer<float> lse_;
  DeviceBuffer<char> workspace_;
};

}  // namespace shardplan
