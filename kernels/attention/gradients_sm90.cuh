// Backward attention for sm_90a without atomics: one kernel owns 128 keys of a head of keys and
// adds dk and dv up over all queries of all heads that share them, one owns 128 queries of one head
// and adds dq up over all keys. Both compute the probabilities again from the log-sum-exp (Dao,
// arXiv 2307.08691, Algorithm 2, taken apart): 7 products instead of 5, in exchange for no
// workspace and sums of a fixed order.
//   ds = p * (dout . v - delta),  dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
// The owned rows are the rows of the scores: what these become stays in registers, as the first
// factor of the next product.
#pragma once

#include "kernels/attention/gradients.cuh"
#include "kernels/attention/warpgroups.cuh"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {

// Tiles of two matrices of which the block owns rows, and of two that pass by: k and v, q and dout,
// or the other way round.
template <int kDim, int kRows, int kStages>
struct GradientShared {
  static constexpr int kTileBytes = kRows * kDim * 2;
  __nv_bfloat16 owned[2][kOwnedRows * kDim];  // a tile for each warpgroup
  __nv_bfloat16 passing[2][kStages][kRows * kDim];
  float lse[kStages][kRows];  // of queries that pass by, times log2(e)
  float delta[kStages][kRows];
  Barrier owned_full;
  Ring<kStages> ring;

  // `producers` threads arrive for each tile that passes by.
  __device__ void open(int producers) {
    if (threadIdx.x == 0) {
      open_barrier(&owned_full, 1);
      ring.open(producers, kConsumerThreads);
      publish_barriers();
    }
    __syncthreads();
  }

  // By one thread: the block's own rows of both matrices, and a tile of both that pass by.
  __device__ void copy_owned(const CUtensorMap& a, const CUtensorMap& b, int head, int first,
                             int sequence) {
    arrive_expecting(&owned_full, sizeof(owned));
    for (int group = 0; group < kConsumers; ++group) {
      const int offset = group * kGroupRows;
      copy_rows<kDim, kGroupRows>(owned[0] + offset * kDim, a, head, first + offset, sequence,
                                  &owned_full);
      copy_rows<kDim, kGroupRows>(owned[1] + offset * kDim, b, head, first + offset, sequence,
                                  &owned_full);
    }
  }
  __device__ void copy_passing(const CUtensorMap& a, const CUtensorMap& b, int head, int first,
                               int sequence, int stage, Barrier* full) {
    arrive_expecting(full, 2 * kTileBytes);
    copy_rows<kDim, kRows>(passing[0][stage], a, head, first, sequence, full);
    copy_rows<kDim, kRows>(passing[1][stage], b, head, first, sequence, full);
  }
};

struct GradientMaps {
  CUtensorMap q, k, v, dout;
};

// Stores 64 rows of gradients through the warpgroup's rows of an owned tile, which is read no more.
template <int kDim, class G>
__device__ void store_group(G* to, std::int64_t stride, __nv_bfloat16* owned, int group, int first,
                            float (&values)[kDim / 8][4], float scale, int length,
                            GradientSum sum) {
  const int row = first + row_of_warp();
  store_gradient<kDim>(to + row * stride, stride, owned + group * kGroupRows * kDim, row_of_warp(),
                       values, scale, length - row, sum);
}

template <int kDim, class G>
void start_key_gradients(const GradientMaps& maps, const GradientPointers<G>& p,
                         const AttentionShape& shape, cudaStream_t stream);
template <int kDim, class G>
void start_query_gradients(const GradientMaps& maps, const GradientPointers<G>& p,
                           const AttentionShape& shape, cudaStream_t stream);

template <class G>
void start_gradients(void (*kernel)(GradientMaps, GradientPointers<G>, AttentionTask), dim3 blocks,
                     int shared_bytes, const GradientMaps& maps, const GradientPointers<G>& p,
                     const AttentionShape& shape, cudaStream_t stream) {
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<blocks, kGroupThreads, shared_bytes, stream>>>(maps, p, task_of(shape));
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shardplan
