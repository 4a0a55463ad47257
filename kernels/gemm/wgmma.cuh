// Products of a warpgroup of 128 threads, wgmma.mma_async of sm_90a (PTX ISA, "Asynchronous
// Warpgroup Level Matrix Multiply-Accumulate Instructions"): a factor of 64 rows from shared memory
// or registers, times one from shared memory, into registers. Device code only.
//
// Tiles in shared memory are columns of panels: a panel has 64 elements (128 bytes) of each row,
// its 16-byte chunks exchanged by the row's low three bits, as the copy engine writes them with
// CU_TENSOR_MAP_SWIZZLE_128B. Eight rows of a panel are 1024 bytes, to which panels are aligned.
//
// Results: warp w of the warpgroup has rows 16 w .. 16 w + 15; a lane has of them rows lane / 4 and
// lane / 4 + 8, and of each block of eight columns 2 (lane % 4) and the next: c[block][0 .. 1] and
// c[block][2 .. 3], as mma.m16n8k16. A factor in registers lies as that instruction's first factor.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/gemm/mma.cuh"

namespace shardplan {

inline constexpr int kWarpgroup = 128;
inline constexpr int kPanel = 64;  // columns

// A block is three warpgroups: one copies tiles, two compute.
inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kGroupRows = 64;
inline constexpr int kGroupThreads = (1 + kConsumers) * kWarpgroup;
inline constexpr int kConsumerThreads = kConsumers * kWarpgroup;
// Of a multiprocessor's 65536: 168 for each thread at launch, then 24 to copy and 240 to compute.
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 240;

// Which consumer this thread belongs to; by way of a shuffle, from which the compiler learns that
// it is the same for a warp: addresses of tiles stay out of the threads' registers.
__device__ inline int consumer_of_warp() {
  return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / kWarpgroup) - 1, 0);
}

// First of its warp's 16 rows, of the 64 of its warpgroup.
__device__ inline int row_of_warp() {
  return static_cast<int>(threadIdx.x % kWarpgroup / 32 * 16);
}

// Where a factor lies: 128-byte swizzle (1 at bit 62), address and strides in units of 16 bytes.
// Panels are `panel_bytes` apart, which only a factor whose rows are the inner dimension uses;
// groups of eight rows 1024 bytes.
__device__ inline std::uint64_t matrix_descriptor(const __nv_bfloat16* at, int panel_bytes) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 / 16} << 32) |
         (static_cast<std::uint64_t>(panel_bytes / 16) << 16) |
         ((shared_address(at) & 0x3FFFFU) / 16);
}

// Orders a thread's writes of registers before products that read or add to them.
__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ inline void close_products() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until at most kOpen of the closed groups of products are still under way.
template <int kOpen>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kOpen) : "memory");
}

// Keeps the compiler from moving uses of results to before the wait for them.
template <int kBlocks>
__device__ void hold(float (&c)[kBlocks][4]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) { asm volatile("" : "+f"(c[block][i])::"memory"); }
  }
}

#define SHARDPLAN_C(mode, b) mode(c[b][0]), mode(c[b][1]), mode(c[b][2]), mode(c[b][3])
#define SHARDPLAN_C8(mode, b)                                                       \
  SHARDPLAN_C(mode, b), SHARDPLAN_C(mode, b + 1), SHARDPLAN_C(mode, b + 2),         \
      SHARDPLAN_C(mode, b + 3), SHARDPLAN_C(mode, b + 4), SHARDPLAN_C(mode, b + 5), \
      SHARDPLAN_C(mode, b + 6), SHARDPLAN_C(mode, b + 7)
#define SHARDPLAN_REGISTERS_32                                                              \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31}"
#define SHARDPLAN_REGISTERS_64                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"  \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
  "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define SHARDPLAN_REGISTERS_128                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"    \
  "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"   \
  "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,"   \
  "%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"   \
  "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105," \
  "%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,"  \
  "%123,%124,%125,%126,%127}"

// c [64, 64 or 128] = a * b^T for 16 columns of both; c += a * b^T. Not one function with a flag:
// c, said to be read, would have to be written before, while other products run: they would be
// serialised.
__device__ inline void first_rows_product(float (&c)[8][4], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_32
               ", %32, %33, 0, 1, 1, 0, 0;\n"
               : SHARDPLAN_C8("=f", 0)
               : "l"(a), "l"(b));
}
__device__ inline void next_rows_product(float (&c)[8][4], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_32
               ", %32, %33, 1, 1, 1, 0, 0;\n"
               : SHARDPLAN_C8("+f", 0)
               : "l"(a), "l"(b));
}
__device__ inline void first_rows_product(float (&c)[16][4], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_64
               ", %64, %65, 0, 1, 1, 0, 0;\n"
               : SHARDPLAN_C8("=f", 0), SHARDPLAN_C8("=f", 8)
               : "l"(a), "l"(b));
}
__device__ inline void next_rows_product(float (&c)[16][4], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_64
               ", %64, %65, 1, 1, 1, 0, 0;\n"
               : SHARDPLAN_C8("+f", 0), SHARDPLAN_C8("+f", 8)
               : "l"(a), "l"(b));
}

// c [64, 64 or 128] += a * b for 16 columns of a and rows of b.
__device__ inline void add_product_once(float (&c)[8][4], const unsigned (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_32
               ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"
               : SHARDPLAN_C8("+f", 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void add_product_once(float (&c)[16][4], const unsigned (&a)[4],
                                        std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_64
               ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"
               : SHARDPLAN_C8("+f", 0), SHARDPLAN_C8("+f", 8)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// c [64, 128 or 256] += op(a) * op(b) for 16 of the inner dimension, both from shared memory. A
// turned factor has the inner dimension along its rows.
template <bool kATurned, bool kBTurned>
__device__ void add_product_once(float (&c)[16][4], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_64
               ", %64, %65, 1, 1, 1, %66, %67;\n"
               : SHARDPLAN_C8("+f", 0), SHARDPLAN_C8("+f", 8)
               : "l"(a), "l"(b), "n"(int{kATurned}), "n"(int{kBTurned}));
}
template <bool kATurned, bool kBTurned>
__device__ void add_product_once(float (&c)[32][4], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " SHARDPLAN_REGISTERS_128
               ", %128, %129, 1, 1, 1, %130, %131;\n"
               : SHARDPLAN_C8("+f", 0), SHARDPLAN_C8("+f", 8), SHARDPLAN_C8("+f", 16),
                 SHARDPLAN_C8("+f", 24)
               : "l"(a), "l"(b), "n"(int{kATurned}), "n"(int{kBTurned}));
}

#undef SHARDPLAN_C
#undef SHARDPLAN_C8
#undef SHARDPLAN_REGISTERS_32
#undef SHARDPLAN_REGISTERS_64
#undef SHARDPLAN_REGISTERS_128

// c = a * b^T over kDim columns. `a` is a tile of 64 rows, `b` one of 8 kBlocks rows.
template <int kDim, int kBlocks>
__device__ void multiply_rows(float (&c)[kBlocks][4], const __nv_bfloat16* a,
                              const __nv_bfloat16* b) {
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int panel = step / 4;
    const int column = step % 4 * 16;  // a panel's rows are swizzled by address: adding works
    const std::uint64_t left = matrix_descriptor(a + panel * 64 * kPanel + column, 16);
    const std::uint64_t right = matrix_descriptor(b + panel * 8 * kBlocks * kPanel + column, 16);
    if (step == 0) {
      first_rows_product(c, left, right);
    } else {
      next_rows_product(c, left, right);
    }
  }
}

// c += a * b, with a [64, 16 kSteps] in registers and a tile b of 16 kSteps rows.
template <int kSteps, int kBlocks>
__device__ void add_product(float (&c)[kBlocks][4], const unsigned (&a)[kSteps][4],
                            const __nv_bfloat16* b) {
  constexpr int kPanelBytes = 16 * kSteps * kPanel * 2;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    add_product_once(c, a[step], matrix_descriptor(b + step * 16 * kPanel, kPanelBytes));
  }
}

// Results as the first factor of a product over their columns.
template <int kSteps>
__device__ void as_factor(unsigned (&a)[kSteps][4], const float (&c)[2 * kSteps][4]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) { as_factor(a[step], c[2 * step], c[2 * step + 1]); }
}

// Registers of a thread, of those that the block's launch bounds reserved: given back, or taken.
template <int kRegisters>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace shardplan
