#include "kernels/experts/router.h"

#include <algorithm>

#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kCountThreads = 1024;
constexpr int kMaxExperts = 1024;
constexpr unsigned kAllLanes = 0xffffffffU;

__device__ int lane_of() {
  return static_cast<int>(threadIdx.x % 32);
}

// A warp owns a row; a lane has the experts lane, lane + 32, ...
template <int kPerLane>
__device__ void load_logits(float (&values)[kPerLane], const float* from, int experts) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane_of() + 32 * i;
    values[i] = expert < experts ? from[expert] : -kInfinity;
  }
}

template <int kPerLane>
__device__ void soften(float (&values)[kPerLane]) {
  float max = -kInfinity;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) { max = fmaxf(max, values[i]); }
  max = warp_max(max);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    values[i] = expf(values[i] - max);
    sum += values[i];
  }
  const float total = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) { values[i] /= total; }
}

// Which of the experts not yet taken is likeliest, of equals the lowest; every lane gets it.
template <int kPerLane>
__device__ int likeliest(const float (&values)[kPerLane], unsigned taken, int experts,
                         float& probability) {
  probability = -1;
  int best = kMaxExperts;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane_of() + 32 * i;
    if (expert < experts && (taken >> i & 1U) == 0 && values[i] > probability) {
      probability = values[i];
      best = expert;
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, probability, offset);
    const int other_best = __shfl_xor_sync(kAllLanes, best, offset);
    if (other > probability || (other == probability && other_best < best)) {
      probability = other;
      best = other_best;
    }
  }
  return best;
}

// The first expert of a row that chooses in turn.
__device__ int first_in_turn(const RouterShape& shape, std::int64_t row) {
  const std::int64_t place = (shape.first_row + row) % shape.sequence_rows;
  const std::int64_t gap = place < shape.sequence_rows / 2 ? 0 : shape.position_gap;
  return static_cast<int>((shape.first_position + place + gap) * shape.num_choices % shape.experts);
}

// Of the lane's values and those of all others, that of one expert.
template <int kPerLane>
__device__ float value_of(const float (&values)[kPerLane], int expert) {
  float own = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) { own = expert / 32 == i ? values[i] : own; }
  return __shfl_sync(kAllLanes, own, expert % 32);
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(float* probabilities, std::int32_t* __restrict__ choices,
                   float* __restrict__ weights, const float* logits, RouterShape shape) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= shape.rows) {
    return;
  }
  const int experts = static_cast<int>(shape.experts);
  const int num_choices = static_cast<int>(shape.num_choices);
  float values[kPerLane];
  load_logits(values, logits + row * experts, experts);
  soften(values);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane_of() + 32 * i;
    if (expert < experts) {
      probabilities[row * experts + expert] = values[i];
    }
  }
  unsigned taken = 0;  // by bit: the lane's experts that are chosen already
  int choice = 0;      // lane k keeps the k-th choice
  float own = 0;
  float sum = 0;
  const int first = shape.chooses_in_turn ? first_in_turn(shape, row) : 0;
  for (int k = 0; k < num_choices; ++k) {
    float probability = 0;
    int best = (first + k) % experts;
    if (shape.chooses_in_turn) {
      probability = value_of(values, best);
    } else {
      best = likeliest(values, taken, experts, probability);
    }
    if (best % 32 == lane_of()) {
      taken |= 1U << (best / 32);
    }
    if (lane_of() == k) {
      choice = best;
      own = probability;
    }
    sum += probability;
  }
  if (lane_of() < num_choices) {
    choices[row * num_choices + lane_of()] = choice;
    weights[row * num_choices + lane_of()] = own / sum;
  }
}

// A block for every sequence counts in shared memory.
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(float* __restrict__ counts, const std::int32_t* __restrict__ choices,
                 std::int64_t rows, int experts, int num_choices, std::int64_t first_row,
                 std::int64_t sequence_rows) {
  __shared__ int shared[kMaxExperts];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kCountThreads) { shared[e] = 0; }
  __syncthreads();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * sequence_rows - first_row;
  const std::int64_t from = (begin > 0 ? begin : 0) * num_choices;
  const std::int64_t end = begin + sequence_rows;
  const std::int64_t to = (end < rows ? end : rows) * num_choices;
  for (std::int64_t i = from + threadIdx.x; i < to; i += kCountThreads) {
    atomicAdd(&shared[choices[i]], 1);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kCountThreads) {
    counts[static_cast<std::int64_t>(blockIdx.x) * experts + e] = static_cast<float>(shared[e]);
  }
}

// With w_k = p_k / s, s the sum of p over the choices: dp_k = (dw_k - sum_c(dw_c p_c) / s) / s.
// Through the softmax: dlogit_e = p_e (dp_e - sum_i(dp_i p_i)). `loss` gets the row's share.
template <int kPerLane, class T>
__device__ void backward_row(T* dlogits, const float* probabilities, const std::int32_t* choices,
                             const float* dweights, const float* counts, float slope, int experts,
                             int num_choices, double& loss) {
  float values[kPerLane];
  float gradient[kPerLane];
  float share = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane_of() + 32 * i;
    const bool exists = expert < experts;
    values[i] = exists ? probabilities[expert] : 0.0F;
    gradient[i] = exists ? slope * counts[expert] : 0.0F;
    share += gradient[i] * values[i];
  }
  loss += static_cast<double>(warp_sum(share));
  const bool chooses = lane_of() < num_choices;
  const int choice = chooses ? choices[lane_of()] : kMaxExperts;
  const float chosen = chooses ? probabilities[choice] : 0.0F;
  const float dweight = chooses ? dweights[lane_of()] : 0.0F;
  const float sum = warp_sum(chosen);
  const float mean = warp_sum(dweight * chosen) / sum;
  const float own = (dweight - mean) / sum;
  for (int k = 0; k < num_choices; ++k) {
    const int expert = __shfl_sync(kAllLanes, choice, k);
    const float more = __shfl_sync(kAllLanes, own, k);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      gradient[i] += expert == lane_of() + 32 * i ? more : 0.0F;
    }
  }
  float pull = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) { pull += gradient[i] * values[i]; }
  pull = warp_sum(pull);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane_of() + 32 * i;
    if (expert < experts) {
      dlogits[expert] = from_float<T>(values[i] * (gradient[i] - pull));
    }
  }
}

template <int kPerLane, class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* __restrict__ dlogits, double* __restrict__ partial,
                    const float* __restrict__ probabilities,
                    const std::int32_t* __restrict__ choices, const float* __restrict__ dweights,
                    const float* __restrict__ counts, float slope, RouterShape shape) {
  __shared__ double sums[kWarps];
  const int experts = static_cast<int>(shape.experts);
  double loss = 0;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       row < shape.rows; row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    const std::int64_t sequence = (shape.first_row + row) / shape.sequence_rows;
    backward_row<kPerLane>(dlogits + row * experts, probabilities + row * experts,
                           choices + row * shape.num_choices, dweights + row * shape.num_choices,
                           counts + sequence * experts, slope, experts,
                           static_cast<int>(shape.num_choices), loss);
  }
  if (lane_of() == 0) {
    sums[threadIdx.x / 32] = loss;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (const double one : sums) { sum += one; }
    partial[blockIdx.x] = sum;
  }
}

// One warp adds the partials: lane by lane, then over the lanes.
__global__ void __launch_bounds__(32)
    add_partials_kernel(float* __restrict__ loss, const double* __restrict__ partial, int count) {
  double sum = 0;
  for (int i = lane_of(); i < count; i += 32) { sum += partial[i]; }
  for (int offset = 16; offset > 0; offset /= 2) { sum += __shfl_xor_sync(kAllLanes, sum, offset); }
  if (lane_of() == 0) {
    *loss += static_cast<float>(sum);
  }
}

// body(std::integral_constant of experts per lane).
template <class Body>
void with_experts_per_lane(std::int64_t experts, const Body& body) {
  if (experts <= 64) {
    body(std::integral_constant<int, 2>{});
  } else if (experts <= 256) {
    body(std::integral_constant<int, 8>{});
  } else {
    body(std::integral_constant<int, 32>{});
  }
}

}  // namespace

void router_forward(float* probabilities, std::int32_t* choices, float* weights, float* counts,
                    const float* logits, const RouterShape& shape, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((shape.rows + kWarps - 1) / kWarps);
  const int experts = static_cast<int>(shape.experts);
  const int num_choices = static_cast<int>(shape.num_choices);
  with_experts_per_lane(shape.experts, [&](auto per_lane) {
    forward_kernel<decltype(per_lane)::value>
        <<<blocks, kThreads, 0, stream>>>(probabilities, choices, weights, logits, shape);
  });
  CUDA_CHECK(cudaGetLastError());
  count_kernel<<<static_cast<unsigned>(shape.sequences), kCountThreads, 0, stream>>>(
      counts, choices, shape.rows, experts, num_choices, shape.first_row, shape.sequence_rows);
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void router_backward(T* dlogits, float* loss, double* partial, const float* probabilities,
                     const std::int32_t* choices, const float* dweights, const float* counts,
                     double slope, const RouterShape& shape, cudaStream_t stream) {
  const std::int64_t blocks =
      std::min<std::int64_t>(kRouterPartials, (shape.rows + kWarps - 1) / kWarps);
  with_experts_per_lane(shape.experts, [&](auto per_lane) {
    backward_kernel<decltype(per_lane)::value>
        <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(dlogits, partial, probabilities,
                                                                 choices, dweights, counts,
                                                                 static_cast<float>(slope), shape);
  });
  CUDA_CHECK(cudaGetLastError());
  add_partials_kernel<<<1, 32, 0, stream>>>(loss, partial, static_cast<int>(blocks));
  CUDA_CHECK(cudaGetLastError());
}

template void router_backward(float*, float*, double*, const float*, const std::int32_t*,
                              const float*, const float*, double, const RouterShape&, cudaStream_t);
template void router_backward(__nv_bfloat16*, float*, double*, const float*, const std::int32_t*,
                              const float*, const float*, double, const RouterShape&, cudaStream_t);

}  // namespace shardplan
