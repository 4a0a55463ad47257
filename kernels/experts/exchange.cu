#include "kernels/experts/exchange.h"

#include <algorithm>

#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kInFlight = 8;  // loads of a thread before the first use

// A block owns a row of this member. Where a choice of it lies; a member below 0: left out.
struct Destination {
  int member;  // first of the copies
  int row;
};

__device__ Destination destination_of(int choice, const std::int32_t* choices,
                                      const std::int32_t* places, const ExpertExchange& e) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * e.num_choices + choice;
  const int place = places[at];
  const int run = choices[at] / static_cast<int>(e.run_experts);
  return {place < e.capacity ? run * static_cast<int>(e.copies) : -1, place};
}

// The rows at the members of the block's row, in the order of choices and copies, without those
// that are left out, into `rows` in shared memory. Returns how many there are.
template <class T>
__device__ int list_rows(T** rows, const MemberPointers<T>& members, const std::int32_t* choices,
                         const std::int32_t* places, const ExpertExchange& e) {
  __shared__ int count;
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    const int copies = static_cast<int>(e.copies);
    const int terms = static_cast<int>(e.num_choices) * copies;
    int listed = 0;
    for (int base = 0; base < terms; base += 32) {
      T* row = nullptr;
      if (base + lane < terms) {
        const Destination to = destination_of((base + lane) / copies, choices, places, e);
        if (to.member >= 0) {
          row = members.at[to.member + (base + lane) % copies] + to.row * e.width;
        }
      }
      const unsigned exist = __ballot_sync(0xffffffffU, row != nullptr);
      if (row != nullptr) {
        rows[listed + __popc(exist & ((1U << lane) - 1U))] = row;
      }
      listed += __popc(exist);
    }
    if (lane == 0) {
      count = listed;
    }
  }
  __syncthreads();
  return count;
}

template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    dispatch_kernel(const __grid_constant__ MemberPointers<T> received,
                    const __grid_constant__ MemberPointers<float> received_weights,
                    const T* __restrict__ x, const std::int32_t* __restrict__ choices,
                    const std::int32_t* __restrict__ places, const float* __restrict__ weights,
                    const __grid_constant__ ExpertExchange exchange) {
  extern __shared__ __align__(8) unsigned char memory[];
  T** rows_to = reinterpret_cast<T**>(memory);
  constexpr int kWidth = kVectorWidth<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = static_cast<int>(exchange.width) / kWidth;
  const T* row = x + static_cast<std::int64_t>(blockIdx.x) * exchange.width;
  const uint4 first = thread < vectors ? load_bits(row + thread * kWidth) : uint4{};
  const int count = list_rows(rows_to, received, choices, places, exchange);
  for (int vector = thread; vector < vectors; vector += static_cast<int>(blockDim.x)) {
    const uint4 bits = vector == thread ? first : load_bits(row + vector * kWidth);
#pragma unroll 4
    for (int i = 0; i < count; ++i) { store_bits(rows_to[i] + vector * kWidth, bits); }
  }
  if (weights != nullptr && thread < exchange.num_choices) {
    const Destination own = destination_of(thread, choices, places, exchange);
    for (int copy = 0; copy < exchange.copies && own.member >= 0; ++copy) {
      received_weights.at[own.member + copy][own.row] =
          weights[static_cast<std::int64_t>(blockIdx.x) * exchange.num_choices + thread];
    }
  }
}

template <class T>
__device__ void add_bits(Floats<T>& total, uint4 bits) {
  const Floats<T> values = floats_of<T>(bits);
#pragma unroll
  for (int j = 0; j < kVectorWidth<T>; ++j) { total.at[j] += values.at[j]; }
}

template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    combine_kernel(T* __restrict__ out, float* __restrict__ out_scalars,
                   const __grid_constant__ MemberPointers<const T> outputs,
                   const __grid_constant__ MemberPointers<const float> scalars,
                   const std::int32_t* __restrict__ choices,
                   const std::int32_t* __restrict__ places,
                   const __grid_constant__ ExpertExchange exchange, CombineSum sum) {
  extern __shared__ __align__(8) unsigned char memory[];
  const T** rows_from = reinterpret_cast<const T**>(memory);
  constexpr int kWidth = kVectorWidth<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = static_cast<int>(exchange.width) / kWidth;
  const int count = list_rows(rows_from, outputs, choices, places, exchange);
  for (int vector = thread; vector < vectors; vector += static_cast<int>(blockDim.x)) {
    const int at = vector * kWidth;
    T* to = out + static_cast<std::int64_t>(blockIdx.x) * exchange.width + at;
    Floats<T> total = {};
    if (sum == CombineSum::kAccumulate) {
      total = floats_of<T>(load_bits(to));
    }
    int base = 0;
    for (; base + kInFlight <= count; base += kInFlight) {
      uint4 held[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) { held[i] = load_bits(rows_from[base + i] + at); }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) { add_bits(total, held[i]); }
    }
#pragma unroll 2
    for (; base < count; ++base) { add_bits(total, load_bits(rows_from[base] + at)); }
    store_bits(to, bits_of(total));
  }
  if (out_scalars != nullptr && thread < exchange.num_choices) {
    const Destination own = destination_of(thread, choices, places, exchange);
    float total = 0;
    for (int copy = 0; copy < exchange.copies && own.member >= 0; ++copy) {
      total += scalars.at[own.member + copy][own.row];
    }
    out_scalars[static_cast<std::int64_t>(blockIdx.x) * exchange.num_choices + thread] = total;
  }
}

// Bytes of shared memory for a row's rows at the members.
unsigned list_bytes(const ExpertExchange& exchange) {
  return static_cast<unsigned>(exchange.num_choices * exchange.copies) *
         static_cast<unsigned>(sizeof(void*));
}

// Whole warps, enough for the choices and for the vectors of a row in one go.
template <class T>
unsigned threads_for(std::int64_t width) {
  const std::int64_t vectors = width / kVectorWidth<T>;
  return static_cast<unsigned>(std::min<std::int64_t>((vectors + 31) / 32 * 32, kMaxThreads));
}

}  // namespace

template <class T>
void expert_dispatch(const MemberPointers<T>& received,
                     const MemberPointers<float>& received_weights, const T* x,
                     const std::int32_t* choices, const std::int32_t* places, const float* weights,
                     const ExpertExchange& exchange, cudaStream_t stream) {
  dispatch_kernel<<<static_cast<unsigned>(exchange.rows), threads_for<T>(exchange.width),
                    list_bytes(exchange), stream>>>(received, received_weights, x, choices, places,
                                                    weights, exchange);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void expert_combine(T* out, float* out_scalars, const MemberPointers<const T>& outputs,
                    const MemberPointers<const float>& scalars, const std::int32_t* choices,
                    const std::int32_t* places, const ExpertExchange& exchange, CombineSum sum,
                    cudaStream_t stream) {
  combine_kernel<<<static_cast<unsigned>(exchange.rows), threads_for<T>(exchange.width),
                   list_bytes(exchange), stream>>>(out, out_scalars, outputs, scalars, choices,
                                                   places, exchange, sum);
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                                  \
  template void expert_dispatch(const MemberPointers<T>&, const MemberPointers<float>&, const T*, \
                                const std::int32_t*, const std::int32_t*, const float*,           \
                                const ExpertExchange&, cudaStream_t);                             \
  template void expert_combine(                                                                   \
      T*, float*, const MemberPointers<const T>&, const MemberPointers<const float>&,             \
      const std::int32_t*, const std::int32_t*, const ExpertExchange&, CombineSum, cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
