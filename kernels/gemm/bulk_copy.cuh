// The copy engine of sm_90 and the barriers in shared memory on which it reports (PTX ISA,
// cp.async.bulk.tensor and mbarrier). Device code only.
#pragma once

#include <cstdint>

#include "kernels/gemm/mma.cuh"
#include "kernels/gemm/tensor_map.h"

namespace shardplan {

// A phase ends when all expected arrivals and bytes have come; phases count from 0.
using Barrier = std::uint64_t;

__device__ inline void open_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// After the last open_barrier, before the block's __syncthreads: the copy engine sees them.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ inline void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives, and adds `bytes` to what the phase waits for.
__device__ inline void arrive_expecting(Barrier* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits for the end of a phase, given by its lowest bit. Waiting for phase -1 returns at once.
__device__ inline void wait_for_phase(Barrier* barrier, int phase) {
  int done = 0;
  do {
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;\n}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(phase & 1)
        : "memory");
  } while (done == 0);
}

// One box; see map_heads for coordinates.
__device__ inline void copy_box(void* to, const CUtensorMap& from, int column, int head, int row,
                                int sequence, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(shared_address(to)),
      "l"(&from), "r"(column), "r"(head), "r"(row), "r"(sequence), "r"(shared_address(barrier))
      : "memory");
}

// One box; see map_matrices for coordinates.
__device__ inline void copy_box(void* to, const CUtensorMap& from, int column, int row, int matrix,
                                Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4}], [%5];\n" ::"r"(shared_address(to)),
      "l"(&from), "r"(column), "r"(row), "r"(matrix), "r"(shared_address(barrier))
      : "memory");
}

// Orders a thread's own accesses of shared memory before those of the copy engine and of products
// that are started after a barrier.
__device__ inline void hand_to_engines() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// kRows rows of a head from `row` on as a tile of panels (wgmma.cuh); by one thread.
template <int kDim, int kRows>
__device__ void copy_rows(__nv_bfloat16* to, const CUtensorMap& from, int head, int row,
                          int sequence, Barrier* barrier) {
  static_assert(kRows % kBoxRows == 0 && kDim % kBoxColumns == 0);
#pragma unroll
  for (int panel = 0; panel < kDim / kBoxColumns; ++panel) {
#pragma unroll
    for (int box = 0; box < kRows / kBoxRows; ++box) {
      copy_box(to + (panel * kRows + box * kBoxRows) * kBoxColumns, from, panel * kBoxColumns, head,
               row + box * kBoxRows, sequence, barrier);
    }
  }
}

// Barriers of a ring of stages in shared memory: a producer waits for a free stage and fills it,
// consumers wait for a full one and free it, every thread for what it read itself. Steps count
// from 0.
template <int kStages>
struct Ring {
  Barrier full[kStages];
  Barrier free[kStages];

  __device__ void open(int producers, int consumers) {
    for (int stage = 0; stage < kStages; ++stage) {
      open_barrier(&full[stage], producers);
      open_barrier(&free[stage], consumers);
    }
  }
  __device__ Barrier* wait_free(int step) {
    wait_for_phase(&free[step % kStages], step / kStages - 1);
    return &full[step % kStages];
  }
  __device__ void wait_full(int step) { wait_for_phase(&full[step % kStages], step / kStages); }
  __device__ void release(int step) { arrive(&free[step % kStages]); }
};

}  // namespace shardplan
