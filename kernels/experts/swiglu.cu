#include "kernels/experts/swiglu.h"

#include <algorithm>

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kUnroll = 2;
constexpr int kThreads = 256;

__device__ float sigmoid(float x) {
  return quick_reciprocal(1.0F + quick_exp(-x));
}

// The grid covers the capacity; blocks behind the last row have nothing to do.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    forward_kernel(T* __restrict__ out, const T* __restrict__ gate_up,
                   const float* __restrict__ weights, const std::int32_t* __restrict__ num_rows,
                   unsigned row_vectors) {
  constexpr int kWidth = kVectorWidth<T>;
  struct Loaded {
    Vector<T> gate, up;
    float weight;
  };
  for_each_vector<kUnroll>(
      static_cast<std::int64_t>(*num_rows) * row_vectors,
      [&](std::int64_t index) {
        const unsigned row = static_cast<unsigned>(index) / row_vectors;
        const T* gate = gate_up + (index + static_cast<std::int64_t>(row) * row_vectors) * kWidth;
        return Loaded{load_vector(gate),
                      load_vector(gate + static_cast<std::int64_t>(row_vectors) * kWidth),
                      weights[row]};
      },
      [&](std::int64_t index, const Loaded& in) {
        Vector<T> result;
        for (int k = 0; k < kWidth; ++k) {
          const float gate = to_float(in.gate.at[k]);
          const float silu = gate * sigmoid(gate);  // in the order of the backward pass
          result.at[k] = from_float<T>(in.weight * silu * to_float(in.up.at[k]));
        }
        store_vector(out + index * kWidth, result);
      });
}

// blockDim.x threads share a row, for its sum over dout * silu(gate) * up; blockDim.y rows are in
// work at once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dgate_up, float* __restrict__ dweights, T* out, const T* dout,
                    const T* gate_up, const float* __restrict__ weights,
                    const std::int32_t* __restrict__ num_rows, int row_vectors) {
  constexpr int kWidth = kVectorWidth<T>;
  __shared__ float scratch[kThreads / 32];
  const int row = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const bool exists = row < *num_rows;
  const float weight = exists ? weights[row] : 0.0F;
  const std::int64_t to_up = static_cast<std::int64_t>(row_vectors) * kWidth;
  const std::int64_t gates = 2 * to_up * row;
  float sum = 0;
#pragma unroll 2
  for (int vector = static_cast<int>(threadIdx.x); exists && vector < row_vectors;
       vector += static_cast<int>(blockDim.x)) {
    const std::int64_t at = gates + static_cast<std::int64_t>(vector) * kWidth;
    const std::int64_t from = to_up * row + static_cast<std::int64_t>(vector) * kWidth;
    const Vector<T> gates_here = load_vector(gate_up + at);
    const Vector<T> ups_here = load_vector(gate_up + at + to_up);
    const Vector<T> douts_here = load_vector(dout + from);
    Vector<T> dgate, dup, again;
    for (int k = 0; k < kWidth; ++k) {
      const float gate = to_float(gates_here.at[k]);
      const float up = to_float(ups_here.at[k]);
      const float gradient = to_float(douts_here.at[k]);
      const float share = sigmoid(gate);
      const float silu = gate * share;
      sum += gradient * silu * up;
      dgate.at[k] = from_float<T>(weight * gradient * up * (share + silu * (1.0F - share)));
      dup.at[k] = from_float<T>(weight * gradient * silu);
      again.at[k] = from_float<T>(weight * silu * up);
    }
    store_vector(dgate_up + at, dgate);
    store_vector(dgate_up + at + to_up, dup);
    if (out != nullptr) {
      store_vector(out + from, again);
    }
  }
  sum = row_sum(sum, scratch + threadIdx.y * (blockDim.x / 32));
  if (exists && threadIdx.x == 0) {
    dweights[row] = sum;
  }
}

}  // namespace

template <class T>
void expert_swiglu_forward(T* out, const T* gate_up, const float* weights,
                           const std::int32_t* num_rows, std::int64_t capacity, std::int64_t width,
                           cudaStream_t stream) {
  const std::int64_t row_vectors = width / kVectorWidth<T>;
  forward_kernel<<<elementwise_blocks<kUnroll>(capacity * row_vectors), kElementwiseThreads, 0,
                   stream>>>(out, gate_up, weights, num_rows, static_cast<unsigned>(row_vectors));
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void expert_swiglu_backward(T* dgate_up, float* dweights, T* out, const T* dout, const T* gate_up,
                            const float* weights, const std::int32_t* num_rows,
                            std::int64_t capacity, std::int64_t width, cudaStream_t stream) {
  const std::int64_t row_vectors = width / kVectorWidth<T>;
  const auto threads =
      static_cast<unsigned>(std::min<std::int64_t>(kThreads, (row_vectors + 31) / 32 * 32));
  const unsigned rows = kThreads / threads;
  backward_kernel<<<static_cast<unsigned>((capacity + rows - 1) / rows), dim3(threads, rows), 0,
                    stream>>>(dgate_up, dweights, out, dout, gate_up, weights, num_rows,
                              static_cast<int>(row_vectors));
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                         \
  template void expert_swiglu_forward(T*, const T*, const float*, const std::int32_t*,   \
                                      std::int64_t, std::int64_t, cudaStream_t);         \
  template void expert_swiglu_backward(T*, float*, T*, const T*, const T*, const float*, \
                                       const std::int32_t*, std::int64_t, std::int64_t,  \
                                       cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
