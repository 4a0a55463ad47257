#include "kernels/rms_norm.h"

#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/vector_io.cuh"

namespace shardplan {
namespace {

// A thread keeps kHeld vectors of its row in registers, so that x is read once. Wider rows reread
// the rest, which then comes from L2.
constexpr int kHeld = 2;
constexpr int kMaxThreads = 1024;
// 16-byte slots of a thread for every held vector of the backward pass; 160 KiB in the largest
// block, which an A100 has. Two or more of them also hold one row of float sums.
constexpr int kSlots = 5;

// One block per row. T* sum is null without the fused addition. All loads stand before the first
// use: a branch between them would leave one in flight at a time.
template <class T, bool kAdd>
__global__ void __launch_bounds__(kMaxThreads, kAdd ? 1 : 2)
    norm_kernel(T* __restrict__ y, float* __restrict__ rstd, T* sum, const T* x, const T* residual,
                const T* __restrict__ weight, int width, float epsilon) {
  __shared__ float scratch[kMaxThreads / 32];
  constexpr int kWidth = kVectorWidth<T>;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * width;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  Vector<T> held[kHeld];
  Vector<T> other[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      held[i] = load_vector(x + begin + first + i * step);
      if constexpr (kAdd) {
        other[i] = load_vector(residual + begin + first + i * step);
      }
    }
  }
  float squares = 0;
  const auto add = [&](Vector<T>& vector, const Vector<T>& more, int column) {
    for (int k = 0; k < kWidth; ++k) {
      if constexpr (kAdd) {
        vector.at[k] = from_float<T>(to_float(vector.at[k]) + to_float(more.at[k]));
      }
      squares += to_float(vector.at[k]) * to_float(vector.at[k]);
    }
    if constexpr (kAdd) {
      store_vector(sum + begin + column, vector);
    }
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      add(held[i], other[i], first + i * step);
    }
  }
  for (int column = first + kHeld * step; column < width; column += step) {
    Vector<T> vector = load_vector(x + begin + column);
    add(vector, load_vector((kAdd ? residual : x) + begin + column), column);
  }
  const float scale = rsqrtf(row_sum(squares, scratch) / static_cast<float>(width) + epsilon);
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
// blockDim.y rows are in work at once. While they are, the next ones are on their way into shared
// memory, where every thread reads only what it copied itself; so loads stay in flight during the
// reduction, without registers to hold them.
template <class T, bool kAdd>
__global__ void __launch_bounds__(kMaxThreads)
    backward_kernel(T* dx, float* __restrict__ partial, const T* dy, const T* __restrict__ x,
                    const float* __restrict__ rstd, const T* __restrict__ weight, const T* dx_add,
                    std::int64_t rows, int width) {
  constexpr int kWidth = kVectorWidth<T>;
  __shared__ float scratch[2][kMaxThreads / 32];
  extern __shared__ uint4 shared[];
  const unsigned threads = blockDim.x * blockDim.y;
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  float* my_partial = partial + static_cast<std::int64_t>(blockIdx.x) * width;
  // Slots 0, 1 and 2, 3: dy and x of the two stages; 4: dx_add, whose only reader refills it.
  const auto slot = [&](unsigned index, int i) {
    return shared + (index * kHeld + static_cast<unsigned>(i)) * threads + thread;
  };
  const auto fetch_add = [&](std::int64_t row) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (kAdd && row < rows && first + i * step < width) {
        __pipeline_memcpy_async(slot(4, i), dx_add + row * width + first + i * step, 16);
      }
    }
    __pipeline_commit();
  };
  const auto fetch = [&](std::int64_t row, unsigned stage) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (row < rows && first + i * step < width) {
        const std::int64_t at = row * width + first + i * step;
        __pipeline_memcpy_async(slot(2 * stage, i), dy + at, 16);
        __pipeline_memcpy_async(slot(2 * stage + 1, i), x + at, 16);
      }
    }
    __pipeline_commit();
  };
  float gradient[kHeld][kWidth] = {};
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y;
  fetch(first_row + threadIdx.y, 0);
  fetch_add(first_row + threadIdx.y);
  unsigned round = 0;
  for (std::int64_t base = first_row; base < rows; base += stride, ++round) {
    // A row past the end keeps the last round in step, and neither reads nor writes.
    const std::int64_t row = base + threadIdx.y;
    const int in_row = row < rows ? width : 0;
    const unsigned stage = round % 2;
    const std::int64_t begin = row * width;
    const float scale = in_row == 0 ? 0.0F : rstd[row];
    fetch(row + stride, 1 - stage);
    __pipeline_wait_prior(1);
    float dot = 0;
    const auto add_dot = [&](const Vector<T>& a, const Vector<T>& b, int column) {
      const Vector<T> gain = load_vector(weight + column);
      for (int k = 0; k < kWidth; ++k) {
        dot += to_float(a.at[k]) * to_float(gain.at[k]) * to_float(b.at[k]);
      }
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (first + i * step < in_row) {
        add_dot(as_vector<T>(*slot(2 * stage, i)), as_vector<T>(*slot(2 * stage + 1, i)),
                first + i * step);
      }
    }
    for (int column = first + kHeld * step; column < in_row; column += step) {
      add_dot(load_vector(dy + begin + column), load_vector(x + begin + column), column);
    }
    const float mean = row_sum(dot, scratch[stage] + threadIdx.y * (blockDim.x / 32)) /
                       static_cast<float>(width) * scale * scale;
    const auto store = [&](const Vector<T>& a, const Vector<T>& b, const Vector<T>& c, int column,
                           auto&& add_weight) {
      const Vector<T> gain = load_vector(weight + column);
      Vector<T> out;
      for (int k = 0; k < kWidth; ++k) {
        const float value = to_float(a.at[k]);
        const float input = to_float(b.at[k]);
        const float through = scale * (value * to_float(gain.at[k]) - input * mean);
        out.at[k] = from_float<T>(kAdd ? through + to_float(c.at[k]) : through);
        add_weight(k, value * input * scale);
      }
      store_vector(dx + begin + column, out);
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (first + i * step < in_row) {
        store(as_vector<T>(*slot(2 * stage, i)), as_vector<T>(*slot(2 * stage + 1, i)),
              as_vector<T>(*slot(4, i)), first + i * step,
              [&](int k, float value) { gradient[i][k] += value; });
      }
    }
    fetch_add(row + stride);
    // Only rows wider than the registers hold, and then blockDim.y is 1: this block owns its
    // partial.
    for (int column = first + kHeld * step; column < in_row; column += step) {
      store(load_vector(dy + begin + column), load_vector(x + begin + column),
            load_vector((kAdd ? dx_add : x) + begin + column), column, [&](int k, float value) {
              my_partial[column + k] = (round == 0 ? 0.0F : my_partial[column + k]) + value;
            });
    }
  }
  __pipeline_wait_prior(0);
  // Rows of the block, added in order.
  float* sums = reinterpret_cast<float*>(shared);
  for (unsigned y = 0; y < blockDim.y; ++y) {
    __syncthreads();
    if (threadIdx.y == y) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int column = first + i * step;
        if (column < width) {
          for (int k = 0; k < kWidth; ++k) {
            float& to = y + 1 == blockDim.y ? my_partial[column + k] : sums[column + k];
            to = (y == 0 ? 0.0F : sums[column + k]) + gradient[i][k];
          }
        }
      }
    }
  }
}

// dweight (+)= the sum of the partials, in order. blockDim is (32, kSlices): 32 columns of as many
// slices of partials.
constexpr int kSlices = 32;
template <class G>
__global__ void __launch_bounds__(32 * kSlices)
    reduce_partials_kernel(G* __restrict__ dweight, const float* __restrict__ partial,
                           int num_partials, int width, GradientSum mode) {
  __shared__ float slices[kSlices][32];
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  float sum = 0;
  if (column < width) {
#pragma unroll 9
    for (int i = static_cast<int>(threadIdx.y); i < num_partials; i += kSlices) {
      sum += partial[static_cast<std::int64_t>(i) * width + column];
    }
  }
  slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < width) {
    for (int i = 1; i < kSlices; ++i) { sum += slices[i][threadIdx.x]; }
    const float before = mode == GradientSum::kAccumulate ? to_float(dweight[column]) : 0.0F;
    dweight[column] = from_float<G>(before + sum);
  }
}

// Threads for one row: enough for kHeld vectors each, whole warps.
template <class T>
int threads_for(std::int64_t width) {
  const std::int64_t vectors = (width + kVectorWidth<T> * kHeld - 1) / (kVectorWidth<T> * kHeld);
  return static_cast<int>(std::min<std::int64_t>((vectors + 31) / 32 * 32, kMaxThreads));
}

}  // namespace

template <class T>
void rms_norm_forward(T* y, float* rstd, const T* x, const T* weight, std::int64_t rows,
                      std::int64_t width, float epsilon, cudaStream_t stream) {
  norm_kernel<T, false><<<static_cast<unsigned>(rows), threads_for<T>(width), 0, stream>>>(
      y, rstd, nullptr, x, nullptr, weight, static_cast<int>(width), epsilon);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void add_rms_norm_forward(T* y, float* rstd, T* sum, const T* x, const T* residual, const T* weight,
                          std::int64_t rows, std::int64_t width, float epsilon,
                          cudaStream_t stream) {
  norm_kernel<T, true><<<static_cast<unsigned>(rows), threads_for<T>(width), 0, stream>>>(
      y, rstd, sum, x, residual, weight, static_cast<int>(width), epsilon);
  CUDA_CHECK(cudaGetLastError());
}

template <class T, class G>
void rms_norm_backward(T* dx, G* dweight, float* partial, const T* dy, const T* x,
                       const float* rstd, const T* weight, const T* dx_add, std::int64_t rows,
                       std::int64_t width, cudaStream_t stream, GradientSum sum) {
  const int threads = threads_for<T>(width);
  const int rows_at_once = std::clamp(512 / threads, 1, 16);
  const std::int64_t blocks =
      std::min<std::int64_t>(kRmsNormPartials, (rows + rows_at_once - 1) / rows_at_once);
  const int shared_bytes = kSlots * kHeld * 16 * threads * rows_at_once;
  const auto kernel = dx_add == nullptr ? backward_kernel<T, false> : backward_kernel<T, true>;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<static_cast<unsigned>(blocks), dim3(threads, rows_at_once),
           static_cast<std::size_t>(shared_bytes), stream>>>(dx, partial, dy, x, rstd, weight,
                                                             dx_add, rows, static_cast<int>(width));
  CUDA_CHECK(cudaGetLastError());
  reduce_partials_kernel<<<static_cast<unsigned>((width + 31) / 32), dim3(32, kSlices), 0,
                           stream>>>(dweight, partial, static_cast<int>(blocks),
                                     static_cast<int>(width), sum);
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                                 \
  template void rms_norm_forward(T*, float*, const T*, const T*, std::int64_t, std::int64_t,     \
                                 float, cudaStream_t);                                           \
  template void add_rms_norm_forward(T*, float*, T*, const T*, const T*, const T*, std::int64_t, \
                                     std::int64_t, float, cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE
#define SHARDPLAN_INSTANTIATE(T, G)                                                           \
  template void rms_norm_backward(T*, G*, float*, const T*, const T*, const float*, const T*, \
                                  const T*, std::int64_t, std::int64_t, cudaStream_t,         \
                                  GradientSum);
SHARDPLAN_INSTANTIATE(float, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
