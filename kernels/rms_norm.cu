#include "kernels/rms_norm.h"

#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/vector_io.cuh"

namespace shardplan {
namespace {

// A thread keeps kHeld vectors of its row in registers, so that x is read once. Wider rows reread
// the rest, which then comes from L2.
constexpr int kHeld = 4;
constexpr int kMaxWarps = 32;

// One block per row. T* sum is null without the fused addition.
template <class T, bool kAdd>
__global__ void __launch_bounds__(1024)
    norm_kernel(T* __restrict__ y, float* __restrict__ rstd, T* sum, const T* x, const T* residual,
                const T* __restrict__ weight, int width, float epsilon) {
  __shared__ float scratch[kMaxWarps];
  constexpr int kWidth = kVectorWidth<T>;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * width;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  Vector<T> held[kHeld];
  float squares = 0;
  const auto load = [&](int column) {
    Vector<T> vector = load_vector(x + begin + column);
    if constexpr (kAdd) {
      const Vector<T> other = load_vector(residual + begin + column);
      for (int k = 0; k < kWidth; ++k) {
        vector.at[k] = from_float<T>(to_float(vector.at[k]) + to_float(other.at[k]));
      }
      store_vector(sum + begin + column, vector);
    }
    for (int k = 0; k < kWidth; ++k) { squares += to_float(vector.at[k]) * to_float(vector.at[k]); }
    return vector;
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      held[i] = load(first + i * step);
    }
  }
  for (int column = first + kHeld * step; column < width; column += step) { load(column); }
  const float scale = rsqrtf(row_sum(squares, scratch, static_cast<int>(blockDim.x) / 32) /
                                 static_cast<float>(width) +
                             epsilon);
  if (threadIdx.x == 0) {
    rstd[blockIdx.x] = scale;
  }
  const auto store = [&](const Vector<T>& vector, int column) {
    const Vector<T> gain = load_vector(weight + column);
    Vector<T> out;
    for (int k = 0; k < kWidth; ++k) {
      out.at[k] = from_float<T>(to_float(vector.at[k]) * scale * to_float(gain.at[k]));
    }
    store_vector(y + begin + column, out);
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      store(held[i], first + i * step);
    }
  }
  for (int column = first + kHeld * step; column < width; column += step) {
    store(load_vector((kAdd ? sum : x) + begin + column), column);
  }
}

// Input gradient dx = rstd * (dy * w - x * rstd^2 * mean(dy * w * x)) and, from the same reads, the
// weight gradient dy * x * rstd summed over the rows of this block. blockDim.x threads share a row,
// blockDim.y rows are in work at once; every block walks the same number of rounds.
template <class T>
__global__ void __launch_bounds__(512)
    backward_kernel(T* dx, float* __restrict__ partial, const T* dy, const T* __restrict__ x,
                    const float* __restrict__ rstd, const T* __restrict__ weight, const T* dx_add,
                    std::int64_t rows, int width) {
  constexpr int kWidth = kVectorWidth<T>;
  extern __shared__ float shared[];
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const std::int64_t rows_a_round = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  float* my_partial = partial + static_cast<std::int64_t>(blockIdx.x) * width;
  float gradient[kHeld][kWidth] = {};
  int round = 0;
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * blockDim.y; base < rows;
       base += rows_a_round, ++round) {
    const std::int64_t row = base + threadIdx.y;
    const bool in_range = row < rows;
    const std::int64_t begin = (in_range ? row : rows - 1) * width;
    const float scale = in_range ? rstd[row] : 0.0F;
    Vector<T> held_dy[kHeld];
    Vector<T> held_x[kHeld];
    float dot = 0;
    const auto add_dot = [&](const Vector<T>& a, const Vector<T>& b, int column) {
      const Vector<T> gain = load_vector(weight + column);
      for (int k = 0; k < kWidth; ++k) {
        dot += to_float(a.at[k]) * to_float(gain.at[k]) * to_float(b.at[k]);
      }
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int column = first + i * step;
      if (column < width) {
        held_dy[i] = load_vector(dy + begin + column);
        held_x[i] = load_vector(x + begin + column);
        add_dot(held_dy[i], held_x[i], column);
      }
    }
    for (int column = first + kHeld * step; column < width; column += step) {
      add_dot(load_vector(dy + begin + column), load_vector(x + begin + column), column);
    }
    float* scratch =
        shared +
        ((round % 2) * static_cast<int>(blockDim.y) + static_cast<int>(threadIdx.y)) * num_warps;
    const float mean = row_sum(dot, scratch, num_warps) / static_cast<float>(width) * scale * scale;
    const auto store = [&](const Vector<T>& a, const Vector<T>& b, int column, auto&& add_weight) {
      const Vector<T> gain = load_vector(weight + column);
      Vector<T> out;
      for (int k = 0; k < kWidth; ++k) {
        const float value = to_float(a.at[k]);
        const float input = to_float(b.at[k]);
        out.at[k] = from_float<T>(scale * (value * to_float(gain.at[k]) - input * mean));
        add_weight(k, value * input * scale);
      }
      if (dx_add != nullptr) {
        const Vector<T> more = load_vector(dx_add + begin + column);
        for (int k = 0; k < kWidth; ++k) {
          out.at[k] = from_float<T>(to_float(out.at[k]) + to_float(more.at[k]));
        }
      }
      if (in_range) {
        store_vector(dx + begin + column, out);
      }
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int column = first + i * step;
      if (column < width) {
        store(held_dy[i], held_x[i], column, [&](int k, float value) { gradient[i][k] += value; });
      }
    }
    // Only rows wider than the registers hold, and then blockDim.y is 1: this block owns its
    // partial.
    for (int column = first + kHeld * step; column < width; column += step) {
      store(load_vector(dy + begin + column), load_vector(x + begin + column), column,
            [&](int k, float value) {
              my_partial[column + k] = (round == 0 ? 0.0F : my_partial[column + k]) + value;
            });
    }
  }
  // Rows of the block, added in order.
  for (unsigned y = 0; y < blockDim.y; ++y) {
    __syncthreads();
    if (threadIdx.y == y) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int column = first + i * step;
        if (column < width) {
          for (int k = 0; k < kWidth; ++k) {
            float& to = blockDim.y == 1 ? my_partial[column + k] : shared[column + k];
            to = (y == 0 ? 0.0F : to) + gradient[i][k];
          }
        }
      }
    }
  }
  if (blockDim.y > 1) {
    __syncthreads();
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    for (int column = thread; column < width; column += threads) {
      my_partial[column] = shared[column];
    }
  }
}

// dweight += the sum of the partials, in order. blockDim is (32, 8): 32 columns, 8 slices of rows.
__global__ void __launch_bounds__(256)
    reduce_partials_kernel(float* __restrict__ dweight, const float* __restrict__ partial,
                           int num_partials, int width) {
  __shared__ float slices[8][32];
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  float sum = 0;
  if (column < width) {
    for (int i = static_cast<int>(threadIdx.y); i < num_partials; i += 8) {
      sum += partial[static_cast<std::int64_t>(i) * width + column];
    }
  }
  slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < width) {
    for (int i = 1; i < 8; ++i) { sum += slices[i][threadIdx.x]; }
    dweight[column] += sum;
  }
}

// Threads for one row: enough for kHeld vectors each, whole warps, at most `limit`.
template <class T>
int threads_for(std::int64_t width, int limit) {
  const std::int64_t vectors = (width + kVectorWidth<T> * kHeld - 1) / (kVectorWidth<T> * kHeld);
  return static_cast<int>(std::min<std::int64_t>((vectors + 31) / 32 * 32, limit));
}

}  // namespace

template <class T>
void rms_norm_forward(T* y, float* rstd, const T* x, const T* weight, std::int64_t rows,
                      std::int64_t width, float epsilon, cudaStream_t stream) {
  norm_kernel<T, false><<<static_cast<unsigned>(rows), threads_for<T>(width, 1024), 0, stream>>>(
      y, rstd, nullptr, x, nullptr, weight, static_cast<int>(width), epsilon);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void add_rms_norm_forward(T* y, float* rstd, T* sum, const T* x, const T* residual, const T* weight,
                          std::int64_t rows, std::int64_t width, float epsilon,
                          cudaStream_t stream) {
  norm_kernel<T, true><<<static_cast<unsigned>(rows), threads_for<T>(width, 1024), 0, stream>>>(
      y, rstd, sum, x, residual, weight, static_cast<int>(width), epsilon);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void rms_norm_backward(T* dx, float* dweight, float* partial, const T* dy, const T* x,
                       const float* rstd, const T* weight, const T* dx_add, std::int64_t rows,
                       std::int64_t width, cudaStream_t stream) {
  const int threads = threads_for<T>(width, 512);
  const int rows_at_once = std::max(1, 512 / threads);
  const std::int64_t blocks =
      std::min<std::int64_t>(kRmsNormPartials, (rows + rows_at_once - 1) / rows_at_once);
  const std::int64_t scratch_floats = 2 * rows_at_once * (threads / 32);
  const std::int64_t shared_floats =
      rows_at_once == 1 ? scratch_floats : std::max(scratch_floats, width);
  backward_kernel<T><<<static_cast<unsigned>(blocks), dim3(threads, rows_at_once),
                       static_cast<std::size_t>(shared_floats) * sizeof(float), stream>>>(
      dx, partial, dy, x, rstd, weight, dx_add, rows, static_cast<int>(width));
  CUDA_CHECK(cudaGetLastError());
  reduce_partials_kernel<<<static_cast<unsigned>((width + 31) / 32), dim3(32, 8), 0, stream>>>(
      dweight, partial, static_cast<int>(blocks), static_cast<int>(width));
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                                  \
  template void rms_norm_forward(T*, float*, const T*, const T*, std::int64_t, std::int64_t,      \
                                 float, cudaStream_t);                                            \
  template void add_rms_norm_forward(T*, float*, T*, const T*, const T*, const T*, std::int64_t,  \
                                     std::int64_t, float, cudaStream_t);                          \
  template void rms_norm_backward(T*, float*, float*, const T*, const T*, const float*, const T*, \
                                  const T*, std::int64_t, std::int64_t, cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
