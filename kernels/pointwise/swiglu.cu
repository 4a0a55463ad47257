#include "kernels/pointwise/swiglu.h"

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kUnroll = 2;

__device__ float sigmoid(float x) {
  return quick_reciprocal(1.0F + quick_exp(-x));
}

// Where vector `index` of an output row lies in the packed rows: its gate; its up is one row of the
// output further. 32-bit division: the 64-bit one costs more than the rest of the kernel.
__device__ std::int64_t gate_vector(std::int64_t index, unsigned row_vectors) {
  const unsigned row = static_cast<unsigned>(index) / row_vectors;
  return index + static_cast<std::int64_t>(row) * row_vectors;
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    forward_kernel(T* __restrict__ out, const T* __restrict__ gate_up, std::int64_t num_vectors,
                   unsigned row_vectors) {
  constexpr int kWidth = kVectorWidth<T>;
  struct Loaded {
    Vector<T> gate, up;
  };
  for_each_vector<kUnroll>(
      num_vectors,
      [&](std::int64_t index) {
        const T* gate = gate_up + gate_vector(index, row_vectors) * kWidth;
        return Loaded{load_vector(gate),
                      load_vector(gate + static_cast<std::int64_t>(row_vectors) * kWidth)};
      },
      [&](std::int64_t index, const Loaded& in) {
        Vector<T> result;
        for (int k = 0; k < kWidth; ++k) {
          const float gate = to_float(in.gate.at[k]);
          result.at[k] = from_float<T>(gate * sigmoid(gate) * to_float(in.up.at[k]));
        }
        store_vector(out + index * kWidth, result);
      });
}

// d silu(x) / dx = s + x * s * (1 - s), s the sigmoid of x.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    backward_kernel(T* dgate_up, T* out, const T* dout, const T* gate_up, std::int64_t num_vectors,
                    unsigned row_vectors) {
  constexpr int kWidth = kVectorWidth<T>;
  struct Loaded {
    Vector<T> gate, up, dout;
  };
  const std::int64_t to_up = static_cast<std::int64_t>(row_vectors) * kWidth;
  for_each_vector<kUnroll>(
      num_vectors,
      [&](std::int64_t index) {
        const T* gate = gate_up + gate_vector(index, row_vectors) * kWidth;
        return Loaded{load_vector(gate), load_vector(gate + to_up),
                      load_vector(dout + index * kWidth)};
      },
      [&](std::int64_t index, const Loaded& in) {
        Vector<T> dgate, dup, again;
        for (int k = 0; k < kWidth; ++k) {
          const float gate = to_float(in.gate.at[k]);
          const float up = to_float(in.up.at[k]);
          const float gradient = to_float(in.dout.at[k]);
          const float share = sigmoid(gate);
          const float silu = gate * share;
          dgate.at[k] = from_float<T>(gradient * up * (share + silu * (1.0F - share)));
          dup.at[k] = from_float<T>(gradient * silu);
          again.at[k] = from_float<T>(silu * up);
        }
        T* to = dgate_up + gate_vector(index, row_vectors) * kWidth;
        store_vector(to, dgate);
        store_vector(to + to_up, dup);
        if (out != nullptr) {
          store_vector(out + index * kWidth, again);
        }
      });
}

}  // namespace

template <class T>
void swiglu_forward(T* out, const T* gate_up, std::int64_t rows, std::int64_t width,
                    cudaStream_t stream) {
  const std::int64_t row_vectors = width / kVectorWidth<T>;
  forward_kernel<<<elementwise_blocks<kUnroll>(rows * row_vectors), kElementwiseThreads, 0,
                   stream>>>(out, gate_up, rows * row_vectors, static_cast<unsigned>(row_vectors));
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void swiglu_backward(T* dgate_up, T* out, const T* dout, const T* gate_up, std::int64_t rows,
                     std::int64_t width, cudaStream_t stream) {
  const std::int64_t row_vectors = width / kVectorWidth<T>;
  backward_kernel<<<elementwise_blocks<kUnroll>(rows * row_vectors), kElementwiseThreads, 0,
                    stream>>>(dgate_up, out, dout, gate_up, rows * row_vectors,
                              static_cast<unsigned>(row_vectors));
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                        \
  template void swiglu_forward(T*, const T*, std::int64_t, std::int64_t, cudaStream_t); \
  template void swiglu_backward(T*, T*, const T*, const T*, std::int64_t, std::int64_t, \
                                cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
