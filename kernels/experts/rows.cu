#include "kernels/experts/rows.h"

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr int kThreads = 1024;
constexpr int kPerThread = 4;
constexpr unsigned kAllLanes = 0xffffffffU;

// Exclusive prefix sum over the block in the order of its threads; `total` is the sum of all.
__device__ int prefix(int value, int* warps, int& total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int scan = value;  // inclusive, over the warp
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(kAllLanes, scan, offset);
    scan += lane >= offset ? other : 0;
  }
  __syncthreads();  // the last call's warps have been read
  if (lane == 31) {
    warps[threadIdx.x / 32] = scan;
  }
  __syncthreads();
  int before = 0;
  total = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    before += i < static_cast<int>(threadIdx.x / 32) ? warps[i] : 0;
    total += warps[i];
  }
  return before + scan - value;
}

// What experts first .. last - 1 get of all members, and expert `last` of the members before this.
__device__ int rows_before(const float* counts, const ExpertRowsShape& s, int first, int last,
                           int* warps) {
  const int members_rows = static_cast<int>(s.experts / s.run_experts * s.copies * s.sequences);
  const int own_rows = static_cast<int>(s.member * s.sequences);
  const int columns = last - first + 1;
  int sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < members_rows * columns; i += kThreads) {
    const int row = i / columns;
    const int expert = first + i % columns;
    if (expert < last || row < own_rows) {
      sum += static_cast<int>(counts[static_cast<std::int64_t>(row) * s.experts + expert]);
    }
  }
  int total = 0;
  prefix(sum, warps, total);
  return total;
}

// Block e gives the choices of expert e their rows, in order: it reads all choices, which then come
// from L2, and needs no scratch.
__global__ void __launch_bounds__(kThreads)
    rows_kernel(std::int32_t* __restrict__ rows, const std::int32_t* __restrict__ chosen,
                const float* __restrict__ counts, ExpertRowsShape shape) {
  __shared__ int warps[kThreads / 32];
  const int expert = static_cast<int>(blockIdx.x);
  const int run = static_cast<int>(shape.run_experts);
  int next = rows_before(counts, shape, expert / run * run, expert, warps);
  for (std::int64_t base = 0; base < shape.choices; base += kThreads * kPerThread) {
    const std::int64_t first = base + threadIdx.x * kPerThread;
    int4 theirs = {-1, -1, -1, -1};
    if (first + kPerThread <= shape.choices) {
      theirs = *reinterpret_cast<const int4*>(chosen + first);
    } else if (first < shape.choices) {
      theirs.x = chosen[first];
      theirs.y = first + 1 < shape.choices ? chosen[first + 1] : -1;
      theirs.z = first + 2 < shape.choices ? chosen[first + 2] : -1;
    }
    const bool mine[kPerThread] = {theirs.x == expert, theirs.y == expert, theirs.z == expert,
                                   theirs.w == expert};
    const int count = mine[0] + mine[1] + mine[2] + mine[3];
    int total = 0;
    int row = next + prefix(count, warps, total);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (mine[i]) {
        rows[first + i] = row++;
      }
    }
    next += total;
  }
}

// One block. Experts of a run one after the other: there are few, and every sum is of many members.
__global__ void __launch_bounds__(kThreads)
    offsets_kernel(std::int32_t* __restrict__ offsets, float* __restrict__ required,
                   const float* __restrict__ counts, ExpertRowsShape shape, RequiredRows sum) {
  __shared__ int shared[kThreads];
  const int members_rows =
      static_cast<int>(shape.experts / shape.run_experts * shape.copies * shape.sequences);
  const int expert = static_cast<int>(threadIdx.x);
  int mine = 0;
  if (expert < shape.experts) {
    for (int row = 0; row < members_rows; ++row) {
      mine += static_cast<int>(counts[static_cast<std::int64_t>(row) * shape.experts + expert]);
    }
  }
  shared[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  int most = 0;
  int row = 0;
  const int capacity = static_cast<int>(shape.capacity);
  const std::int64_t own_run = shape.member / shape.copies;
  for (int e = 0; e < shape.experts; ++e) {
    const int local = e % static_cast<int>(shape.run_experts);
    const bool own = e / shape.run_experts == own_run;
    row = local == 0 ? 0 : row;
    if (own) {
      offsets[local] = min(row, capacity);
    }
    row += shared[e];
    if (own) {
      offsets[local + 1] = min(row, capacity);
    }
    most = max(most, row);
  }
  const float needed = static_cast<float>(most);
  *required = sum == RequiredRows::kMaximum ? fmaxf(*required, needed) : needed;
}

}  // namespace

void expert_rows(std::int32_t* rows, std::int32_t* offsets, float* required,
                 const std::int32_t* chosen, const float* counts, const ExpertRowsShape& shape,
                 RequiredRows sum, cudaStream_t stream) {
  rows_kernel<<<static_cast<unsigned>(shape.experts), kThreads, 0, stream>>>(rows, chosen, counts,
                                                                             shape);
  CUDA_CHECK(cudaGetLastError());
  offsets_kernel<<<1, kThreads, 0, stream>>>(offsets, required, counts, shape, sum);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shardplan
