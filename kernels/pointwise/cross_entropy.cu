#include "kernels/pointwise/cross_entropy.h"

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kThreads = 256;
constexpr int kCombineThreads = 1024;
constexpr int kUnroll = 4;  // vectors of a thread in flight at once

// One block per row; every thread keeps a running maximum and the sum relative to it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(RowStatistics* __restrict__ statistics, const T* __restrict__ logits,
                      const std::int32_t* __restrict__ targets, int width, int num_valid,
                      std::int64_t first_column) {
  constexpr int kWidth = kVectorWidth<T>;
  __shared__ float maxima[kThreads / 32];
  __shared__ float scratch[kThreads / 32];
  const T* row = logits + static_cast<std::int64_t>(blockIdx.x) * width;
  float max = -kInfinity;
  float sum = 0;
  const auto add = [&](const Vector<T>& vector) {
    float next = max;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) { next = fmaxf(next, to_float(vector.at[k])); }
    sum *= quick_exp(max - next);
    max = next;
    const float offset = max * kLog2E;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      sum += quick_exp2(__fmaf_rn(to_float(vector.at[k]), kLog2E, -offset));
    }
  };
  const int num_full = num_valid / kWidth;
  for (int first = static_cast<int>(threadIdx.x); first < num_full; first += kUnroll * kThreads) {
    Vector<T> vectors[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < num_full) {
        vectors[i] = load_vector(row + (first + i * kThreads) * kWidth);
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads < num_full) {
        add(vectors[i]);
      }
    }
  }
  if (threadIdx.x == 0 && num_valid % kWidth != 0) {
    Vector<T> last = load_vector(row + num_full * kWidth);
#pragma unroll
    for (int k = 1; k < kWidth; ++k) {
      last.at[k] = k < num_valid % kWidth ? last.at[k] : from_float<T>(-kInfinity);
    }
    add(last);
  }
  const float warp = warp_max(max);
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = warp;
  }
  __syncthreads();
  float row_max = -kInfinity;
  for (const float value : maxima) { row_max = fmaxf(row_max, value); }
  const float row_total = row_sum(sum == 0 ? 0.0F : sum * quick_exp(max - row_max), scratch);
  if (threadIdx.x == 0) {
    const std::int64_t target = targets[blockIdx.x] - first_column;
    const bool mine = target >= 0 && target < num_valid;
    statistics[blockIdx.x] = {row_max, row_total, mine ? to_float(row[target]) : 0.0F};
  }
}

// One block: the rows of a chunk are few, and their sum has one order.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(RowStatistics* __restrict__ combined, float* __restrict__ loss,
                   const RowStatistics* __restrict__ statistics, std::int64_t shards,
                   std::int64_t rows, double scale) {
  __shared__ double sums[kCombineThreads];
  double total = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kCombineThreads) {
    RowStatistics all = {-kInfinity, 0, 0};
    for (std::int64_t i = 0; i < shards; ++i) {
      all.max = fmaxf(all.max, statistics[i * rows + row].max);
    }
    for (std::int64_t i = 0; i < shards; ++i) {
      const RowStatistics shard = statistics[i * rows + row];
      all.sum += shard.sum * expf(shard.max - all.max);
      all.target += shard.target;
    }
    combined[row] = all;
    total += static_cast<double>(all.max + logf(all.sum) - all.target);
  }
  sums[threadIdx.x] = total;
  for (unsigned half = kCombineThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    *loss += static_cast<float>(scale * sums[0]);
  }
}

// A block owns kUnroll * kThreads neighbouring vectors of one row: what belongs to the row is
// computed once, and every thread's loads stand before the first use.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(T* __restrict__ logits, const RowStatistics* __restrict__ combined,
                    const std::int32_t* __restrict__ targets, int row_vectors, unsigned row_blocks,
                    int num_valid, std::int64_t first_column, float scale) {
  constexpr int kWidth = kVectorWidth<T>;
  const unsigned row = blockIdx.x / row_blocks;
  const int first = static_cast<int>(blockIdx.x % row_blocks * (kUnroll * kThreads) + threadIdx.x);
  T* begin = logits + static_cast<std::int64_t>(row) * row_vectors * kWidth;
  Vector<T> vectors[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kThreads < row_vectors) {
      vectors[i] = load_vector(begin + (first + i * kThreads) * kWidth);
    }
  }
  const RowStatistics all = combined[row];
  const float lse = all.max + logf(all.sum);
  const std::int64_t target = targets[row] - first_column;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int column = (first + i * kThreads) * kWidth;
    if (column >= row_vectors * kWidth) {
      return;
    }
    float share[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) { share[k] = quick_exp(to_float(vectors[i].at[k]) - lse); }
    if (target >= column && target < column + kWidth) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) { share[k] -= target == column + k ? 1.0F : 0.0F; }
    }
    if (column + kWidth > num_valid) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) { share[k] = column + k < num_valid ? share[k] : 0.0F; }
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) { vectors[i].at[k] = from_float<T>(share[k] * scale); }
    store_vector(begin + column, vectors[i]);
  }
}

}  // namespace

template <class T>
void cross_entropy_statistics(RowStatistics* statistics, const T* logits,
                              const std::int32_t* targets, const VocabularyShard& shard,
                              cudaStream_t stream) {
  statistics_kernel<<<static_cast<unsigned>(shard.rows), kThreads, 0, stream>>>(
      statistics, logits, targets, static_cast<int>(shard.width), static_cast<int>(shard.num_valid),
      shard.first_column);
  CUDA_CHECK(cudaGetLastError());
}

void cross_entropy_combine(RowStatistics* combined, float* loss, const RowStatistics* statistics,
                           std::int64_t shards, std::int64_t rows, double scale,
                           cudaStream_t stream) {
  combine_kernel<<<1, kCombineThreads, 0, stream>>>(combined, loss, statistics, shards, rows,
                                                    scale);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void cross_entropy_gradient(T* logits, const RowStatistics* combined, const std::int32_t* targets,
                            const VocabularyShard& shard, float scale, cudaStream_t stream) {
  const std::int64_t row_vectors = shard.width / kVectorWidth<T>;
  constexpr std::int64_t kPerBlock = kUnroll * kThreads;
  const std::int64_t row_blocks = (row_vectors + kPerBlock - 1) / kPerBlock;
  gradient_kernel<<<static_cast<unsigned>(shard.rows * row_blocks), kThreads, 0, stream>>>(
      logits, combined, targets, static_cast<int>(row_vectors), static_cast<unsigned>(row_blocks),
      static_cast<int>(shard.num_valid), shard.first_column, scale);
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                        \
  template void cross_entropy_statistics(RowStatistics*, const T*, const std::int32_t*, \
                                         const VocabularyShard&, cudaStream_t);         \
  template void cross_entropy_gradient(T*, const RowStatistics*, const std::int32_t*,   \
                                       const VocabularyShard&, float, cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
