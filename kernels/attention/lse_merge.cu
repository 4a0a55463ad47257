#include "kernels/attention/lse_merge.h"

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kWarps = kElementwiseThreads / 32;

// One warp for one head of one row: it alone reads and replaces the log-sum-exp.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    merge_kernel(float* __restrict__ o, float* __restrict__ lse, const T* __restrict__ part_o,
                 const float* __restrict__ part_lse, std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= heads) {
    return;
  }
  float* to = o + index * head_dim;
  const T* from = part_o + index * head_dim;
  // Loaded before the weights are known: otherwise one wait follows the other.
  const int lane = static_cast<int>(threadIdx.x % 32);
  Pack<float> sum = {};
  Pack<T> part = {};
  const auto load = [&](std::int64_t column) {
    if (column < head_dim) {
      sum = load_pack(to + column);
      part = load_pack(from + column);
    }
  };
  load(lane * kPackWidth);
  const float before = lse[index];
  const float added = part_lse[index];
  const float max = fmaxf(before, added);
  // Nothing seen on either side: both weights are 0.
  const float merged = max == -kInfinity ? max : max + logf(expf(before - max) + expf(added - max));
  const float keep = before == -kInfinity ? 0.0F : expf(before - merged);
  const float take = added == -kInfinity ? 0.0F : expf(added - merged);
  for (std::int64_t column = lane * kPackWidth; column < head_dim; column += 32 * kPackWidth) {
    for (int k = 0; k < kPackWidth; ++k) {
      sum.at[k] = sum.at[k] * keep + (take == 0 ? 0.0F : to_float(part.at[k]) * take);
    }
    store_pack(to + column, sum);
    load(column + 32 * kPackWidth);
  }
  __syncwarp();
  if (lane == 0) {
    lse[index] = merged;
  }
}

}  // namespace

template <class T>
void lse_merge(float* o, float* lse, const T* part_o, const float* part_lse, std::int64_t rows,
               std::int64_t heads, std::int64_t head_dim, cudaStream_t stream) {
  const std::int64_t warps = rows * heads;
  merge_kernel<<<static_cast<unsigned>((warps + kWarps - 1) / kWarps), kElementwiseThreads, 0,
                 stream>>>(o, lse, part_o, part_lse, warps, head_dim);
  CUDA_CHECK(cudaGetLastError());
}

template void lse_merge(float*, float*, const float*, const float*, std::int64_t, std::int64_t,
                        std::int64_t, cudaStream_t);
template void lse_merge(float*, float*, const __nv_bfloat16*, const float*, std::int64_t,
                        std::int64_t, std::int64_t, cudaStream_t);

}  // namespace shardplan
