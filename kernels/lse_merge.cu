#include "kernels/lse_merge.h"

#include "kernels/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kWarps = kElementwiseThreads / 32;

// One warp for one head of one row: it alone reads and replaces the log-sum-exp.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    merge_kernel(float* __restrict__ o, float* __restrict__ lse, const T* __restrict__ part_o,
                 const float* __restrict__ part_lse, LseMergeShape shape,
                 std::int64_t part_length) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= shape.batch * part_length * shape.heads) {
    return;
  }
  const std::int64_t head = index % shape.heads;
  const std::int64_t row = index / shape.heads % part_length;
  const std::int64_t sequence = index / shape.heads / part_length;
  float* old_lse = lse + (sequence * shape.heads + head) * shape.length + shape.first_row + row;
  float* to =
      o + ((sequence * shape.length + shape.first_row + row) * shape.heads + head) * shape.head_dim;
  const T* from = part_o + index * shape.head_dim;
  // Loaded before the weights are known: otherwise one wait follows the other.
  const int lane = static_cast<int>(threadIdx.x % 32);
  Pack<float> sum = {};
  Pack<T> part = {};
  const auto load = [&](std::int64_t column) {
    if (column < shape.head_dim) {
      sum = load_pack(to + column);
      part = load_pack(from + column);
    }
  };
  load(lane * kPackWidth);
  const float before = *old_lse;
  const float added = part_lse[(sequence * shape.heads + head) * part_length + row];
  const float max = fmaxf(before, added);
  // Nothing seen on either side: both weights are 0.
  const float merged = max == -kInfinity ? max : max + logf(expf(before - max) + expf(added - max));
  const float keep = before == -kInfinity ? 0.0F : expf(before - merged);
  const float take = added == -kInfinity ? 0.0F : expf(added - merged);
  for (std::int64_t column = lane * kPackWidth; column < shape.head_dim;
       column += 32 * kPackWidth) {
    for (int k = 0; k < kPackWidth; ++k) {
      sum.at[k] = sum.at[k] * keep + (take == 0 ? 0.0F : to_float(part.at[k]) * take);
    }
    store_pack(to + column, sum);
    load(column + 32 * kPackWidth);
  }
  __syncwarp();
  if (lane == 0) {
    *old_lse = merged;
  }
}

}  // namespace

template <class T>
void lse_merge(float* o, float* lse, const T* part_o, const float* part_lse,
               const LseMergeShape& shape, cudaStream_t stream) {
  const std::int64_t part_length = shape.length - shape.first_row;
  const std::int64_t warps = shape.batch * part_length * shape.heads;
  merge_kernel<<<static_cast<unsigned>((warps + kWarps - 1) / kWarps), kElementwiseThreads, 0,
                 stream>>>(o, lse, part_o, part_lse, shape, part_length);
  CUDA_CHECK(cudaGetLastError());
}

template void lse_merge(float*, float*, const float*, const float*, const LseMergeShape&,
                        cudaStream_t);
template void lse_merge(float*, float*, const __nv_bfloat16*, const float*, const LseMergeShape&,
                        cudaStream_t);

}  // namespace shardplan
