// How the grouped products for sm_90a store what a warp computed. Device code only.
#pragma once

#include <type_traits>

#include "kernels/experts/grouped_tiles.cuh"

namespace shardplan {

// Four 8x8 matrices into shared memory; lanes 8 i .. 8 i + 7 give the rows of matrix i.
__device__ inline void store_matrices(void* row, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(shared_address(row)),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// 16 x 8 kBlocks results of a warp, rounded, 128 columns at a time.
template <int kFirstBlock, int kBlocks>
__device__ void store_rounded(const Result<__nv_bfloat16>& result, const float (&sums)[kBlocks][4],
                              float* strip, int first_row, int first_column) {
  constexpr int kColumns = 128;
  constexpr int kChunks = kColumns / kChunk;
  __nv_bfloat16* tile = reinterpret_cast<__nv_bfloat16*>(strip);
  const int lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
#pragma unroll
  for (int block = 0; block < kChunks; block += 2) {
    const float(&low)[4] = sums[kFirstBlock + block];
    const float(&high)[4] = sums[kFirstBlock + block + 1];
    store_matrices(tile_chunk<kColumns>(tile, lane % 16, block + lane / 16), pack(low[0], low[1]),
                   pack(low[2], low[3]), pack(high[0], high[1]), pack(high[2], high[3]));
  }
  __syncwarp();
  const int column = first_column + lane % kChunks * kChunk;
#pragma unroll
  for (int i = 0; i < 16; i += 32 / kChunks) {
    const int row = i + lane / kChunks;
    if (first_row + row < result.rows && column < result.columns) {
      store_bits(result.data + (first_row + row) * result.stride + column,
                 load_bits(tile_chunk<kColumns>(tile, row, lane % kChunks)));
    }
  }
  if constexpr (kFirstBlock + kChunks < kBlocks) {
    store_rounded<kFirstBlock + kChunks>(result, sums, strip, first_row, first_column + kColumns);
  }
}

// Added in L2: nothing waits for what was there. Every element has one thread in a kernel, so the
// sum is that of a load, an addition and a store, and repeats; denormals become 0.
struct AddInMemory {
  __device__ void operator()(int /*i*/, float* to, const Floats<float>& values) const {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to),
                 "f"(values.at[0]), "f"(values.at[1]), "f"(values.at[2]), "f"(values.at[3])
                 : "memory");
  }
};

// 16 x 8 kBlocks results of a warp, as a gradient.
template <int kFirstBlock, class G, int kBlocks>
__device__ void store_sums(const Result<G>& result, const float (&sums)[kBlocks][4], float* strip,
                           int row, int column) {
  if constexpr (kFirstBlock < kBlocks) {
    const bool adds = result.sum == GradientSum::kAccumulate;
    if constexpr (std::is_same_v<G, float>) {
      if (adds) {
        store_strip<kFirstBlock>(result, sums, strip, row, column, AddInMemory{});
      } else {
        store_strip<kFirstBlock>(result, sums, strip, row, column, AddAndStore<G>{{}, result.sum});
      }
    } else {
      uint4 before[kStripVectors<G>] = {};
      if (adds) {
        load_strip(before, result, row, column);
      }
      store_strip<kFirstBlock>(result, sums, strip, row, column,
                               AddAndStore<G>{before, result.sum});
    }
    store_sums<kFirstBlock + 8>(result, sums, strip, row, column + 64);
  }
}

}  // namespace shardplan
