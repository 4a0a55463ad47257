#include "kernels/pointwise/rms_norm.h"

#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {
namespace {

// A thread keeps kHeld vectors of its row in registers, so that x is read once. Wider rows reread
// the rest, which then comes from L2.
constexpr int kHeld = 4;
constexpr int kMaxThreads = 512;
// 16-byte slots of a thread for every held vector of the backward pass: dy, x and dx_add. Two of
// them also hold one row of float sums.
constexpr int kSlots = 3;
constexpr int kSharedBytes = kSlots * kHeld * 16 * kMaxThreads;  // 96 KiB
constexpr int kMaxRows = 8;  // that a block of the backward pass has in work at once

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
  uint4 held[kHeld];
  uint4 other[kHeld];
  uint4 gain[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      held[i] = load_bits(x + begin + first + i * step);
      if constexpr (kAdd) {
        other[i] = load_bits(residual + begin + first + i * step);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      gain[i] = load_bits(weight + first + i * step);
    }
  }
  float squares = 0;
  const auto add = [&](uint4& bits, uint4 more, int column) {
    if constexpr (kAdd) {
      Floats<T> both = floats_of<T>(bits);
      const Floats<T> added = floats_of<T>(more);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) { both.at[k] += added.at[k]; }
      bits = bits_of(both);
      store_bits(sum + begin + column, bits);
    }
    const Floats<T> values = floats_of<T>(bits);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) { squares += values.at[k] * values.at[k]; }
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      add(held[i], other[i], first + i * step);
    }
  }
  for (int column = first + kHeld * step; column < width; column += step) {
    uint4 bits = load_bits(x + begin + column);
    add(bits, load_bits((kAdd ? residual : x) + begin + column), column);
  }
  const float scale = rsqrtf(row_sum(squares, scratch) / static_cast<float>(width) + epsilon);
  if (threadIdx.x == 0 && rstd != nullptr) {
    rstd[blockIdx.x] = scale;
  }
  const auto store = [&](uint4 bits, uint4 gain_bits, int column) {
    Floats<T> out = floats_of<T>(bits);
    const Floats<T> factors = floats_of<T>(gain_bits);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) { out.at[k] *= scale * factors.at[k]; }
    store_bits(y + begin + column, bits_of(out));
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * step < width) {
      store(held[i], gain[i], first + i * step);
    }
  }
  for (int column = first + kHeld * step; column < width; column += step) {
    store(load_bits((kAdd ? sum : x) + begin + column), load_bits(weight + column), column);
  }
}

// One row's vectors of the backward pass.
template <class T>
__device__ float dot_of(uint4 dy, uint4 x, uint4 gain) {
  const Floats<T> a = floats_of<T>(dy);
  const Floats<T> b = floats_of<T>(x);
  const Floats<T> g = floats_of<T>(gain);
  float dot = 0;
#pragma unroll
  for (int k = 0; k < kVectorWidth<T>; ++k) { dot += a.at[k] * g.at[k] * b.at[k]; }
  return dot;
}

// dx of one vector; add_weight(k, value) takes its share of the weight gradient.
template <class T, class AddWeight>
__device__ uint4 gradient_of(uint4 dy, uint4 x, uint4 gain, const Floats<T>& dx_add, float scale,
                             float mean, const AddWeight& add_weight) {
  const Floats<T> a = floats_of<T>(dy);
  const Floats<T> b = floats_of<T>(x);
  const Floats<T> g = floats_of<T>(gain);
  Floats<T> out;
#pragma unroll
  for (int k = 0; k < kVectorWidth<T>; ++k) {
    const float normed = b.at[k] * scale;
    out.at[k] = fmaf(a.at[k] * g.at[k], scale, fmaf(normed, -mean, dx_add.at[k]));
    add_weight(k, a.at[k] * normed);
  }
  return bits_of(out);
}

// Input gradient dx = rstd * (dy * w - x * rstd^2 * mean(dy * w * x)) and, from the same reads, the
// weight gradient dy * x * rstd summed over the rows of this block. blockDim.x threads share a row,
// blockDim.y rows are in work at once. While they are, the next ones are on their way into shared
// memory, where every thread reads only what it copied itself. It refills a slot as soon as it has
// read it: loads stay in flight during the reduction.
// kWide: rows of which threads hold a part only; then blockDim.y is 1.
template <class T, bool kAdd, bool kWide>
__global__ void __launch_bounds__(kMaxThreads)
    backward_kernel(T* dx, float* __restrict__ partial, const T* dy, const T* __restrict__ x,
                    const float* __restrict__ rstd, const T* __restrict__ weight, const T* dx_add,
                    int rows, int width) {
  constexpr int kWidth = kVectorWidth<T>;
  __shared__ float scratch[2][kMaxThreads / 32];
  extern __shared__ uint4 shared[];
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int stride = static_cast<int>(gridDim.x * blockDim.y);
  float* my_partial = partial + static_cast<std::int64_t>(blockIdx.x) * width;
  const auto slot = [&](unsigned index, int i) {
    return shared + (index * kHeld + static_cast<unsigned>(i)) * kMaxThreads + thread;
  };
  const auto fetch = [&](unsigned index, const T* from, int row) {
    const T* at = from + (static_cast<std::int64_t>(row) * width + first);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (row < rows && first + i * step < width) {
        __pipeline_memcpy_async(slot(index, i), at + i * step, 16);
      }
    }
  };
  uint4 gain[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    gain[i] = {};
    if (first + i * step < width) {
      gain[i] = load_bits(weight + first + i * step);
    } else {
      for (unsigned index = 0; index < kSlots; ++index) { *slot(index, i) = {}; }
    }
  }
  const auto gain_of = [&](int i) {
    if constexpr (kWide) {  // no register is left for it
      return load_bits(weight + first + i * step);
    }
    keep_packed(gain[i]);
    return gain[i];
  };
  float gradient[kHeld][kWidth] = {};
  const int row_of_block = static_cast<int>(threadIdx.y);
  int row = static_cast<int>(blockIdx.x * blockDim.y) + row_of_block;
  float next_scale = rstd[min(row, rows - 1)];
  fetch(0, dy, row);
  fetch(1, x, row);
  __pipeline_commit();
  if (kAdd) {
    fetch(2, dx_add, row);
  }
  __pipeline_commit();
  unsigned round = 0;
  // A row past the end keeps the last round in step, and neither reads nor writes.
#pragma unroll 1
  for (; row - row_of_block < rows; row += stride, ++round) {
    const bool exists = kWide || row < rows;
    const std::int64_t begin = static_cast<std::int64_t>(row) * width;
    const float scale = next_scale;
    uint4 a[kHeld];
    uint4 b[kHeld];
    float dot = 0;
    if (exists) {
      next_scale = rstd[min(row + stride, rows - 1)];
      __pipeline_wait_prior(1);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        a[i] = *slot(0, i);
        b[i] = *slot(1, i);
        dot += dot_of<T>(a[i], b[i], gain_of(i));
      }
      if constexpr (kWide) {
#pragma unroll 1
        for (int column = first + kHeld * step; column < width; column += step) {
          dot += dot_of<T>(load_bits(dy + begin + column), load_bits(x + begin + column),
                           load_bits(weight + column));
        }
      }
      fetch(0, dy, row + stride);
      fetch(1, x, row + stride);
      __pipeline_commit();
    }
    const float mean = row_sum(dot, scratch[round % 2] + threadIdx.y * (blockDim.x / 32)) /
                       static_cast<float>(width) * scale * scale;
    if (exists) {
      __pipeline_wait_prior(1);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        Floats<T> before = {};
        if constexpr (kAdd) {
          before = floats_of<T>(*slot(2, i));
        }
        keep_packed(a[i]);
        keep_packed(b[i]);
        const uint4 out = gradient_of<T>(a[i], b[i], gain_of(i), before, scale, mean,
                                         [&](int k, float value) { gradient[i][k] += value; });
        if (first + i * step < width) {
          store_bits(dx + begin + first + i * step, out);
        }
      }
      if constexpr (kWide) {  // this block owns its partial
#pragma unroll 1
        for (int column = first + kHeld * step; column < width; column += step) {
          Floats<T> before = {};
          if constexpr (kAdd) {
            before = floats_of<T>(load_bits(dx_add + begin + column));
          }
          const uint4 out = gradient_of<T>(
              load_bits(dy + begin + column), load_bits(x + begin + column),
              load_bits(weight + column), before, scale, mean, [&](int k, float value) {
                my_partial[column + k] = (row < stride ? 0.0F : my_partial[column + k]) + value;
              });
          store_bits(dx + begin + column, out);
        }
      }
      if (kAdd) {
        fetch(2, dx_add, row + stride);
      }
      __pipeline_commit();
    }
  }
  __pipeline_wait_prior(0);
  // Rows of the block, added in order.
  float* sums = reinterpret_cast<float*>(shared);
  for (unsigned y = 0; y < blockDim.y; ++y) {
    __syncthreads();
    if (threadIdx.y == y) {
      float* to = y + 1 == blockDim.y ? my_partial : sums;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
#pragma unroll
        for (int k = 0; k < kWidth; k += 4) {
          const int column = first + i * step + k;
          if (column < width) {
            float4 sum = y == 0 ? float4{} : *reinterpret_cast<const float4*>(sums + column);
            sum.x += gradient[i][k];
            sum.y += gradient[i][k + 1];
            sum.z += gradient[i][k + 2];
            sum.w += gradient[i][k + 3];
            *reinterpret_cast<float4*>(to + column) = sum;
          }
        }
      }
    }
  }
}

// dweight (+)= the sum of the partials, in order. blockDim is (32, kSlices): 32 columns of as many
// slices of partials. All loads stand before the first use.
constexpr int kSlices = 32;
constexpr int kPerSlice = (kRmsNormPartials + kSlices - 1) / kSlices;
template <class G>
__global__ void __launch_bounds__(32 * kSlices)
    reduce_partials_kernel(G* __restrict__ dweight, const float* __restrict__ partial,
                           int num_partials, int width, GradientSum mode) {
  __shared__ float slices[kSlices][32];
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const bool writes = threadIdx.y == 0 && column < width;
  float own[kPerSlice];
#pragma unroll
  for (int i = 0; i < kPerSlice; ++i) {
    const int index = static_cast<int>(threadIdx.y) + i * kSlices;
    own[i] = column < width && index < num_partials
                 ? partial[static_cast<std::int64_t>(index) * width + column]
                 : 0.0F;
  }
  const float before =
      writes && mode == GradientSum::kAccumulate ? to_float(dweight[column]) : 0.0F;
  float sum = 0;
#pragma unroll
  for (const float value : own) { sum += value; }
  slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (writes) {
#pragma unroll
    for (int i = 1; i < kSlices; ++i) { sum += slices[i][threadIdx.x]; }
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
  const bool is_wide = width > static_cast<std::int64_t>(threads) * kHeld * kVectorWidth<T>;
  const int rows_at_once = std::clamp(kMaxThreads / threads, 1, kMaxRows);
  const std::int64_t blocks =
      std::min<std::int64_t>(kRmsNormPartials, (rows + rows_at_once - 1) / rows_at_once);
  const auto narrow =
      dx_add == nullptr ? backward_kernel<T, false, false> : backward_kernel<T, true, false>;
  const auto wide =
      dx_add == nullptr ? backward_kernel<T, false, true> : backward_kernel<T, true, true>;
  const auto kernel = is_wide ? wide : narrow;
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<static_cast<unsigned>(blocks), dim3(threads, rows_at_once), kSharedBytes, stream>>>(
      dx, partial, dy, x, rstd, weight, dx_add, static_cast<int>(rows), static_cast<int>(width));
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
