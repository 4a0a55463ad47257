// Tensor-core building blocks: tiles of bf16 in shared memory, their copies, and the product
// mma.m16n8k16 (PTX ISA 9.7.15.5, "Matrix Fragments for mma.m16n8k16"). Device code only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace shardplan {

inline constexpr int kChunk = 8;  // elements of 16 bytes

// Rows of kDim elements; the 16-byte chunks of a row are exchanged by the row's low bits, so that
// eight rows of one column of chunks lie in different banks.
template <int kDim>
__device__ __nv_bfloat16* tile_chunk(__nv_bfloat16* tile, int row, int chunk) {
  return tile + row * kDim + ((chunk ^ (row & 7)) * kChunk);
}

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory; zeros where `exists` is false.
__device__ inline void copy_chunk(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
               "l"(from), "r"(exists ? 16 : 0));
}

__device__ inline void close_copies() {
  asm volatile("cp.async.commit_group;\n" ::);
}

// Waits until at most kOpen of the closed groups of copies are still under way.
template <int kOpen>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kOpen));
}

// Waits for all copies, closed or not.
__device__ inline void wait_for_all_copies() {
  asm volatile("cp.async.wait_all;\n" ::);
}

// Four 8x8 matrices; lanes 8 i .. 8 i + 7 give the rows of matrix i.
__device__ inline void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}

__device__ inline void load_matrices_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}

// c [16,8] += a [16,16] * b [16,8]. A lane holds of c rows lane / 4 and lane / 4 + 8, columns
// 2 (lane % 4) and the next.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline unsigned pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  unsigned bits = 0;
  memcpy(&bits, &both, sizeof(bits));
  return bits;
}

// Rows first .. first + 15 of a tile as the first factor, inner dimension 16 `step` and on.
template <int kDim>
__device__ void load_factor(unsigned (&a)[4], __nv_bfloat16* tile, int first, int step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices(a, tile_chunk<kDim>(tile, first + lane % 16, 2 * step + lane / 16));
}

// Rows first .. first + 15 of a tile as 16 columns of the second factor, inner dimension along the
// rows: b[0], b[1] for the first eight columns, b[2], b[3] for the next.
template <int kDim>
__device__ void load_columns(unsigned (&b)[4], __nv_bfloat16* tile, int first, int step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices(b,
                tile_chunk<kDim>(tile, first + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

// Rows first .. first + 15 of a tile as the inner dimension of the second factor, columns 16
// `block` and on: b[0], b[1] for the first eight columns, b[2], b[3] for the next.
template <int kDim>
__device__ void load_inner(unsigned (&b)[4], __nv_bfloat16* tile, int first, int block) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices_transposed(b, tile_chunk<kDim>(tile, first + lane % 16, 2 * block + lane / 16));
}

// Two neighbouring 16x8 results as a first factor [16,16].
__device__ inline void as_factor(unsigned (&a)[4], const float (&left)[4],
                                 const float (&right)[4]) {
  a[0] = pack(left[0], left[1]);
  a[1] = pack(left[2], left[3]);
  a[2] = pack(right[0], right[1]);
  a[3] = pack(right[2], right[3]);
}

// kRows rows of a matrix into a tile by kThreads threads; rows at or beyond `count` are zero.
template <int kDim, int kRows, int kThreads>
__device__ void copy_tile(__nv_bfloat16* tile, const __nv_bfloat16* from, std::int64_t stride,
                          int first, int count) {
  constexpr int kChunks = kDim / kChunk;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    const bool exists = first + row < count;
    const std::int64_t source = exists ? first + row : 0;
    copy_chunk(tile_chunk<kDim>(tile, row, chunk), from + source * stride + chunk * kChunk, exists);
  }
}

// 16 rows of results through rows first .. first + 15 of a tile, which this warp alone uses, to
// `to`; rows at or beyond `count` are not stored.
template <int kDim>
__device__ void store_rows(__nv_bfloat16* to, std::int64_t stride, __nv_bfloat16* tile, int first,
                           const float (&values)[kDim / 8][4], int count) {
  constexpr int kChunks = kDim / kChunk;
  const int lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
#pragma unroll
  for (int block = 0; block < kDim / 8; ++block) {
    for (int half = 0; half < 2; ++half) {
      __nv_bfloat16* chunk = tile_chunk<kDim>(tile, first + lane / 4 + 8 * half, block);
      const unsigned bits = pack(values[block][2 * half], values[block][2 * half + 1]);
      memcpy(chunk + 2 * (lane % 4), &bits, sizeof(bits));
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    if (row < count) {
      *reinterpret_cast<uint4*>(to + row * stride + chunk * kChunk) =
          *reinterpret_cast<const uint4*>(tile_chunk<kDim>(tile, first + row, chunk));
    }
  }
}

}  // namespace shardplan
