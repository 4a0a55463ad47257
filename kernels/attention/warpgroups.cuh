// What the attention kernels for sm_90a share. Of a block's three warpgroups (wgmma.cuh) the two
// that compute own 64 rows each. Device code only.
#pragma once

#include "kernels/attention/tiles.cuh"
#include "kernels/gemm/bulk_copy.cuh"
#include "kernels/gemm/wgmma.cuh"

namespace shardplan {

inline constexpr int kOwnedRows = kConsumers * kGroupRows;

// One block for each head and each kOwnedRows of its rows. Heads run fastest: those that share keys
// find them in the cache.
inline dim3 blocks_of(std::int64_t heads, std::int64_t rows, std::int64_t batch) {
  return {static_cast<unsigned>(heads), static_cast<unsigned>((rows + kOwnedRows - 1) / kOwnedRows),
          static_cast<unsigned>(batch)};
}

// First of a lane's two rows, of the 64 of its warpgroup; the other is eight below.
__device__ inline int row_of_lane() {
  return static_cast<int>(threadIdx.x % kWarpgroup / 32 * 16 + threadIdx.x % 32 / 4);
}

// Waits for the warpgroup's other warps.
__device__ inline void meet_warpgroup(int group) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(1 + group), "n"(kWarpgroup) : "memory");
}

// The consumers start their products by turns: one computes exponentials while the other's products
// run (Shah et al., arXiv 2407.08608, section 3.1). Both take and pass equally often.
class Turns {
 public:
  __device__ explicit Turns(int group) : group_(group) {
    if (group == kConsumers - 1) {
      pass();
    }
  }
  __device__ void take() const {
    asm volatile("bar.sync %0, %1;\n" ::"r"(kBarrier + group_), "n"(kConsumerThreads) : "memory");
  }
  __device__ void pass() const {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(kBarrier + 1 - group_), "n"(kConsumerThreads)
                 : "memory");
  }

 private:
  static_assert(kConsumers == 2);
  static constexpr int kBarrier = 1 + kConsumers;  // after those of the block and of warpgroups
  int group_;
};

// Waits for the tile after this one, if there is one: earlier than it is needed, because the branch
// keeps the assembler from moving a wait for products that follows to before what precedes.
template <int kStages>
__device__ void await_next(Ring<kStages>& ring, int step, int count) {
  static_assert(kStages > 2);  // the tile before this one is not free yet
  if (step + 1 < count) {
    ring.wait_full(step + 1);
  }
}

// Columns from first_column on that a row does not see become -infinity; rows lie as results do.
template <int kBlocks>
__device__ void mask_columns(float (&c)[kBlocks][4], const Range (&seen)[2], int first_column) {
  const int own = first_column + 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int begin = seen[half].begin - own;
    const int end = seen[half].end - own;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * block + i;
        float& value = c[block][2 * half + i];
        value = column >= begin && column < end ? value : kMinusInfinity;
      }
    }
  }
}

// Scores of 64 queries from `first` on, as rows, with kBlocks times eight keys as columns.
template <int kBlocks>
__device__ void mask_keys(float (&scores)[kBlocks][4], const AttentionTask& task, int first,
                          int first_key) {
  if (!sees_all(task, first, kGroupRows, first_key, 8 * kBlocks)) {
    const int query = first + row_of_lane();
    const Range seen[2] = {keys_of(task, query, query), keys_of(task, query + 8, query + 8)};
    mask_columns(scores, seen, first_key);
  }
}

// Scores of 64 keys from `first` on, as rows, with kBlocks times eight queries as columns.
template <int kBlocks>
__device__ void mask_queries(float (&scores)[kBlocks][4], const AttentionTask& task, int first,
                             int first_query) {
  if (!sees_all(task, first_query, 8 * kBlocks, first, kGroupRows)) {
    const int key = first + row_of_lane();
    const Range seen[2] = {queries_of(task, key, key), queries_of(task, key + 8, key + 8)};
    mask_columns(scores, seen, first_query);
  }
}

}  // namespace shardplan
