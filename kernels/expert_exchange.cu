#include "kernels/expert_exchange.h"

#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/vector_io.cuh"

namespace shardplan {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMaxChoices = 32;
constexpr int kInFlight = 4;  // loads of a thread before the first use

// A block owns a row of this member; its choices lie in shared memory. A member below 0: left out.
struct Destination {
  int member;  // first of the copies
  int row;
};

__device__ void load_destinations(Destination* to, const std::int32_t* choices,
                                  const std::int32_t* places, const ExpertExchange& e) {
  const int k = static_cast<int>(threadIdx.x);
  const int count = static_cast<int>(e.num_choices);
  if (k < count) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * count + k;
    const int run = choices[at] / static_cast<int>(e.run_experts);
    const int place = places[at];
    to[k] = {place < e.capacity ? run * static_cast<int>(e.copies) : -1, place};
  }
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    dispatch_kernel(const __grid_constant__ MemberPointers<T> received,
                    const __grid_constant__ MemberPointers<float> received_weights,
                    const T* __restrict__ x, const std::int32_t* __restrict__ choices,
                    const std::int32_t* __restrict__ places, const float* __restrict__ weights,
                    const __grid_constant__ ExpertExchange exchange) {
  __shared__ Destination destinations[kMaxChoices];
  load_destinations(destinations, choices, places, exchange);
  const int count = static_cast<int>(exchange.num_choices);
  const int copies = static_cast<int>(exchange.copies);
  if (weights != nullptr && static_cast<int>(threadIdx.x) < count) {
    const Destination own = destinations[threadIdx.x];
    for (int copy = 0; copy < copies && own.member >= 0; ++copy) {
      received_weights.at[own.member + copy][own.row] =
          weights[static_cast<std::int64_t>(blockIdx.x) * count + threadIdx.x];
    }
  }
  constexpr int kWidth = kVectorWidth<T>;
  const int vectors = static_cast<int>(exchange.width) / kWidth;
  const T* row = x + static_cast<std::int64_t>(blockIdx.x) * exchange.width;
  const int step = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < vectors; first += kInFlight * step) {
    Vector<T> held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * step < vectors) {
        held[i] = load_vector(row + (first + i * step) * kWidth);
      }
    }
    for (int k = 0; k < count; ++k) {
      const Destination destination = destinations[k];
      for (int copy = 0; copy < copies && destination.member >= 0; ++copy) {
        T* to = received.at[destination.member + copy] + destination.row * exchange.width;
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (first + i * step < vectors) {
            store_vector(to + (first + i * step) * kWidth, held[i]);
          }
        }
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    combine_kernel(T* __restrict__ out, float* __restrict__ out_scalars,
                   const __grid_constant__ MemberPointers<const T> outputs,
                   const __grid_constant__ MemberPointers<const float> scalars,
                   const std::int32_t* __restrict__ choices,
                   const std::int32_t* __restrict__ places,
                   const __grid_constant__ ExpertExchange exchange, CombineSum sum) {
  __shared__ Destination destinations[kMaxChoices];
  load_destinations(destinations, choices, places, exchange);
  const int count = static_cast<int>(exchange.num_choices);
  const int copies = static_cast<int>(exchange.copies);
  if (out_scalars != nullptr && static_cast<int>(threadIdx.x) < count) {
    const Destination own = destinations[threadIdx.x];
    float total = 0;
    for (int copy = 0; copy < copies && own.member >= 0; ++copy) {
      total += scalars.at[own.member + copy][own.row];
    }
    out_scalars[static_cast<std::int64_t>(blockIdx.x) * count + threadIdx.x] = total;
  }
  constexpr int kWidth = kVectorWidth<T>;
  const int vectors = static_cast<int>(exchange.width) / kWidth;
  T* row = out + static_cast<std::int64_t>(blockIdx.x) * exchange.width;
  for (int vector = static_cast<int>(threadIdx.x); vector < vectors;
       vector += static_cast<int>(blockDim.x)) {
    float total[kWidth] = {};
    if (sum == CombineSum::kAccumulate) {
      const Vector<T> before = load_vector(row + vector * kWidth);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) { total[j] = to_float(before.at[j]); }
    }
    const int terms = count * copies;
    for (int base = 0; base < terms; base += kInFlight) {
      Vector<T> held[kInFlight];
      bool exists[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int k = min(base + i, terms - 1) / copies;
        const Destination from = destinations[k];
        exists[i] = base + i < terms && from.member >= 0;
        if (exists[i]) {
          held[i] = load_vector(outputs.at[from.member + (base + i) % copies] +
                                from.row * exchange.width + vector * kWidth);
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (exists[i]) {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) { total[j] += to_float(held[i].at[j]); }
        }
      }
    }
    Vector<T> result;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) { result.at[j] = from_float<T>(total[j]); }
    store_vector(row + vector * kWidth, result);
  }
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
  dispatch_kernel<<<static_cast<unsigned>(exchange.rows), threads_for<T>(exchange.width), 0,
                    stream>>>(received, received_weights, x, choices, places, weights, exchange);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void expert_combine(T* out, float* out_scalars, const MemberPointers<const T>& outputs,
                    const MemberPointers<const float>& scalars, const std::int32_t* choices,
                    const std::int32_t* places, const ExpertExchange& exchange, CombineSum sum,
                    cudaStream_t stream) {
  combine_kernel<<<static_cast<unsigned>(exchange.rows), threads_for<T>(exchange.width), 0,
                   stream>>>(out, out_scalars, outputs, scalars, choices, places, exchange, sum);
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
