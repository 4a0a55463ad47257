// What the backward attention kernels on tensor cores share. Device code only.
#pragma once

#include "kernels/attention/tensor_cores.h"
#include "kernels/attention/tiles.cuh"

namespace shardplan {

// 16 rows of gradients, times `scale`, to rows first .. of `to` below `end`.
template <int kDim>
__device__ void store_gradient(float* to, std::int64_t stride, __nv_bfloat16* /*tile*/,
                               int /*tile_row*/, float (&values)[kDim / 8][4], float scale,
                               int count, GradientSum sum) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int block = 0; block < kDim / 8; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (row < count) {
        float2* at = reinterpret_cast<float2*>(to + row * stride + 8 * block + 2 * (lane % 4));
        float2 value = sum == GradientSum::kAccumulate ? *at : float2{0, 0};
        value.x += scale * values[block][2 * half];
        value.y += scale * values[block][2 * half + 1];
        *at = value;
      }
    }
  }
}

template <int kDim>
__device__ void store_gradient(__nv_bfloat16* to, std::int64_t stride, __nv_bfloat16* tile,
                               int tile_row, float (&values)[kDim / 8][4], float scale, int count,
                               GradientSum sum) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int block = 0; block < kDim / 8; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[block][i] *= scale;
      const int row = lane / 4 + 8 * (i / 2);
      if (sum == GradientSum::kAccumulate && row < count) {
        values[block][i] += __bfloat162float(to[row * stride + 8 * block + 2 * (lane % 4) + i % 2]);
      }
    }
  }
  store_rows<kDim>(to, stride, tile, tile_row, values, count);
}

}  // namespace shardplan
