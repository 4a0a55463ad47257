#include "kernels/attention/attention.h"

#include "kernels/attention/tensor_cores.h"
#include "kernels/attention/tiles.cuh"
#include "kernels/gemm/warpgroups.h"
#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kMaxDim = 256;
constexpr int kPerLane = kMaxDim / 32;

// Plain arithmetic: a warp owns one row; each lane computes the score of one of 32 neighbours, then
// all lanes together add up their vectors, a lane having the elements lane, lane + 32, ...
using LaneValues = float[kPerLane];

__device__ int lane_of() {
  return static_cast<int>(threadIdx.x % 32);
}

template <class T>
__device__ void load_row(float* to, const T* from, int dim) {
  for (int i = lane_of(); i < dim; i += 32) { to[i] = to_float(from[i]); }
  __syncwarp();
}

// sum += weight * row, for the lane's elements.
template <class T>
__device__ void add_row(LaneValues& sum, float weight, const T* row, int dim) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane_of() + 32 * i < dim) {
      sum[i] = fmaf(weight, to_float(row[lane_of() + 32 * i]), sum[i]);
    }
  }
}

template <class T>
__device__ float dot(const float* a, const T* b, int dim) {
  float sum = 0;
#pragma unroll 2
  for (int i = 0; i < dim; i += kVectorWidth<T>) {
    const Vector<T> part = load_vector(b + i);
    for (int k = 0; k < kVectorWidth<T>; ++k) { sum = fmaf(a[i + k], to_float(part.at[k]), sum); }
  }
  return sum;
}

template <class G>
__device__ void store_row(G* to, const LaneValues& values, float scale, int dim, GradientSum sum) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int at = lane_of() + 32 * i;
    if (at < dim) {
      const float before = sum == GradientSum::kAccumulate ? to_float(to[at]) : 0.0F;
      to[at] = from_float<G>(before + scale * values[i]);
    }
  }
}

// The row of queries that a warp owns.
struct QueryRow {
  std::int64_t sequence;
  int head;
  int query;

  __device__ std::int64_t row(const AttentionTask& task) const {
    return sequence * task.query_length + query;
  }
  __device__ std::int64_t statistic(const AttentionTask& task) const {
    return row(task) * task.heads + head;
  }
};

__device__ QueryRow query_row(const AttentionTask& task) {
  const unsigned index = blockIdx.x * kWarps + threadIdx.x / 32;
  const unsigned head = index / static_cast<unsigned>(task.query_length);
  return {head / static_cast<unsigned>(task.heads),
          static_cast<int>(head % static_cast<unsigned>(task.heads)),
          static_cast<int>(index % static_cast<unsigned>(task.query_length))};
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    plain_forward_kernel(T* __restrict__ o, float* __restrict__ lse, const T* __restrict__ q,
                         const T* __restrict__ k, const T* __restrict__ v, AttentionTask task,
                         std::int64_t batch, int dim) {
  __shared__ float queries[kWarps][kMaxDim];
  const QueryRow own = query_row(task);
  if (own.sequence >= batch) {
    return;
  }
  float* query = queries[threadIdx.x / 32];
  load_row(query, q + own.row(task) * task.q_stride + own.head * dim, dim);
  const std::int64_t offset =
      own.sequence * task.key_length * task.kv_stride +
      static_cast<std::int64_t>(own.head / (task.heads / task.kv_heads)) * dim;
  const Range range = keys_of(task, own.query, own.query);
  LaneValues sum = {};
  float max = kMinusInfinity;
  float total = 0;
  for (int first = range.begin; first < range.end; first += 32) {
    const int key = first + lane_of();
    float score = kMinusInfinity;
    if (key < range.end) {
      score = task.scale * dot(query, k + offset + key * task.kv_stride, dim);
    }
    float new_max = fmaxf(max, score);
    for (int step = 16; step > 0; step /= 2) {
      new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffffU, new_max, step));
    }
    const float keep = expf(max - new_max);
    const float weight = expf(score - new_max);
    max = new_max;
    total = total * keep + warp_sum(weight);
    for (float& value : sum) { value *= keep; }
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
      add_row(sum, __shfl_sync(0xffffffffU, weight, i),
              v + offset + min(first + i, range.end - 1) * task.kv_stride, dim);
    }
  }
  store_row(o + own.row(task) * task.o_stride + own.head * dim, sum, 1.0F / total, dim,
            GradientSum::kOverwrite);
  if (lane_of() == 0) {
    lse[own.statistic(task)] = max + logf(total);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    delta_kernel(float* __restrict__ delta, const T* __restrict__ dout, const T* __restrict__ o,
                 AttentionTask task, std::int64_t batch, int dim) {
  const QueryRow own = query_row(task);
  if (own.sequence >= batch) {
    return;
  }
  const std::int64_t at = own.row(task) * task.o_stride + own.head * dim;
  float sum = 0;
  for (int i = lane_of() * kVectorWidth<T>; i < dim; i += 32 * kVectorWidth<T>) {
    const Vector<T> a = load_vector(dout + at + i);
    const Vector<T> b = load_vector(o + at + i);
    for (int k = 0; k < kVectorWidth<T>; ++k) {
      sum = fmaf(to_float(a.at[k]), to_float(b.at[k]), sum);
    }
  }
  sum = warp_sum(sum);
  if (lane_of() == 0) {
    delta[own.statistic(task)] = sum;
  }
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads, 4)
    plain_query_kernel(G* __restrict__ dq, const float* __restrict__ delta,
                       const T* __restrict__ dout, const T* __restrict__ q, const T* __restrict__ k,
                       const T* __restrict__ v, const float* __restrict__ lse, AttentionTask task,
                       AttentionGradientShape gradients, std::int64_t batch, int dim) {
  __shared__ float queries[kWarps][kMaxDim];
  __shared__ float douts[kWarps][kMaxDim];
  const QueryRow own = query_row(task);
  if (own.sequence >= batch) {
    return;
  }
  float* query = queries[threadIdx.x / 32];
  float* gradient = douts[threadIdx.x / 32];
  load_row(query, q + own.row(task) * task.q_stride + own.head * dim, dim);
  load_row(gradient, dout + own.row(task) * task.o_stride + own.head * dim, dim);
  const std::int64_t offset =
      own.sequence * task.key_length * task.kv_stride +
      static_cast<std::int64_t>(own.head / (task.heads / task.kv_heads)) * dim;
  const Range range = keys_of(task, own.query, own.query);
  const float origin = lse[own.statistic(task)];
  const float own_delta = delta[own.statistic(task)];
  LaneValues sum = {};
  for (int first = range.begin; first < range.end; first += 32) {
    const int key = first + lane_of();
    float ds = 0;
    if (key < range.end) {
      const std::int64_t at = offset + key * task.kv_stride;
      const float p = expf(task.scale * dot(query, k + at, dim) - origin);
      ds = p * (dot(gradient, v + at, dim) - own_delta);
    }
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
      add_row(sum, __shfl_sync(0xffffffffU, ds, i),
              k + offset + min(first + i, range.end - 1) * task.kv_stride, dim);
    }
  }
  store_row(dq + own.row(task) * gradients.dq_stride + own.head * dim, sum, task.scale, dim,
            gradients.dq_sum);
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads, 4)
    plain_key_kernel(G* __restrict__ dk, G* __restrict__ dv, const float* __restrict__ delta,
                     const T* __restrict__ dout, const T* __restrict__ q, const T* __restrict__ k,
                     const T* __restrict__ v, const float* __restrict__ lse, AttentionTask task,
                     AttentionGradientShape gradients, std::int64_t batch, int dim) {
  __shared__ float keys[kWarps][kMaxDim];
  __shared__ float values[kWarps][kMaxDim];
  const unsigned index = blockIdx.x * kWarps + threadIdx.x / 32;
  const unsigned head_index = index / static_cast<unsigned>(task.key_length);
  const std::int64_t sequence = head_index / static_cast<unsigned>(task.kv_heads);
  const int kv_head = static_cast<int>(head_index % static_cast<unsigned>(task.kv_heads));
  const int key = static_cast<int>(index % static_cast<unsigned>(task.key_length));
  if (sequence >= batch) {
    return;
  }
  const std::int64_t row = sequence * task.key_length + key;
  float* own_key = keys[threadIdx.x / 32];
  float* own_value = values[threadIdx.x / 32];
  load_row(own_key, k + row * task.kv_stride + kv_head * dim, dim);
  load_row(own_value, v + row * task.kv_stride + kv_head * dim, dim);
  const Range range = queries_of(task, key, key);
  const int heads_per_kv = task.heads / task.kv_heads;
  const auto statistic = [&](int query, int head) {
    return (sequence * task.query_length + query) * task.heads + head;
  };
  LaneValues key_sum = {};
  LaneValues value_sum = {};
#pragma unroll 1
  for (int head = kv_head * heads_per_kv; head < (kv_head + 1) * heads_per_kv; ++head) {
    const T* own_q = q + sequence * task.query_length * task.q_stride + head * dim;
    const T* own_dout = dout + sequence * task.query_length * task.o_stride + head * dim;
#pragma unroll 1
    for (int first = range.begin; first < range.end; first += 32) {
      const int query = first + lane_of();
      float p = 0;
      float ds = 0;
      if (query < range.end) {
        p = expf(task.scale * dot(own_key, own_q + query * task.q_stride, dim) -
                 lse[statistic(query, head)]);
        ds = p * (dot(own_value, own_dout + query * task.o_stride, dim) -
                  delta[statistic(query, head)]);
      }
#pragma unroll 1
      for (int i = 0; i < 32; ++i) {
        add_row(key_sum, __shfl_sync(0xffffffffU, ds, i),
                own_q + min(first + i, range.end - 1) * task.q_stride, dim);
        add_row(value_sum, __shfl_sync(0xffffffffU, p, i),
                own_dout + min(first + i, range.end - 1) * task.o_stride, dim);
      }
    }
  }
  const std::int64_t to = row * gradients.dkv_stride + kv_head * dim;
  store_row(dk + to, key_sum, task.scale, dim, gradients.dkv_sum);
  store_row(dv + to, value_sum, 1.0F, dim, gradients.dkv_sum);
}

unsigned blocks_of(std::int64_t rows) {
  return static_cast<unsigned>((rows + kWarps - 1) / kWarps);
}

bool fits_tensor_cores(const AttentionShape& shape) {
  return shape.head_dim == 64 || shape.head_dim == 128;
}

}  // namespace

bool runs_on_warpgroups(const AttentionShape& shape) {
  return fits_tensor_cores(shape) && has_warpgroups();
}

template <class T>
void attention_forward(T* o, float* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& shape, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (fits_tensor_cores(shape)) {
      const auto forward =
          has_warpgroups() ? attention_forward_on_warpgroups : attention_forward_on_tensor_cores;
      forward(o, lse, q, k, v, shape, stream);
      return;
    }
  }
  plain_forward_kernel<<<blocks_of(shape.batch * shape.heads * shape.query_length), kThreads, 0,
                         stream>>>(o, lse, q, k, v, task_of(shape), shape.batch,
                                   static_cast<int>(shape.head_dim));
  CUDA_CHECK(cudaGetLastError());
}

template <class T, class G>
void attention_backward(G* dq, G* dk, G* dv, float* delta, const T* dout, const T* q, const T* k,
                        const T* v, const T* o, const float* lse, const AttentionShape& shape,
                        const AttentionGradientShape& gradients, cudaStream_t stream) {
  const AttentionTask task = task_of(shape);
  const int dim = static_cast<int>(shape.head_dim);
  const unsigned query_blocks = blocks_of(shape.batch * shape.heads * shape.query_length);
  delta_kernel<<<query_blocks, kThreads, 0, stream>>>(delta, dout, o, task, shape.batch, dim);
  CUDA_CHECK(cudaGetLastError());
  if constexpr (sizeof(T) == 2) {
    if (fits_tensor_cores(shape)) {
      const auto backward = has_warpgroups() ? attention_backward_on_warpgroups<G>
                                             : attention_backward_on_tensor_cores<G>;
      backward({dq, dk, dv, delta, dout, q, k, v, lse, gradients}, shape, stream);
      return;
    }
  }
  plain_query_kernel<<<query_blocks, kThreads, 0, stream>>>(dq, delta, dout, q, k, v, lse, task,
                                                            gradients, shape.batch, dim);
  CUDA_CHECK(cudaGetLastError());
  plain_key_kernel<<<blocks_of(shape.batch * shape.kv_heads * shape.key_length), kThreads, 0,
                     stream>>>(dk, dv, delta, dout, q, k, v, lse, task, gradients, shape.batch,
                               dim);
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T, G)                                                            \
  template void attention_backward(G*, G*, G*, float*, const T*, const T*, const T*, const T*, \
                                   const T*, const float*, const AttentionShape&,              \
                                   const AttentionGradientShape&, cudaStream_t);
SHARDPLAN_INSTANTIATE(float, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, float)
#undef SHARDPLAN_INSTANTIATE
template void attention_forward(float*, float*, const float*, const float*, const float*,
                                const AttentionShape&, cudaStream_t);
template void attention_forward(__nv_bfloat16*, float*, const __nv_bfloat16*, const __nv_bfloat16*,
                                const __nv_bfloat16*, const AttentionShape&, cudaStream_t);

}  // namespace shardplan
