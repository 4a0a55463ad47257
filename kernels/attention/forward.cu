// Forward attention on tensor cores: a block owns 128 rows of queries of one head and walks over
// tiles of 64 keys with a running maximum and sum (Dao, arXiv 2307.08691, Algorithm 1).
#include "kernels/attention/tensor_cores.h"

#include "kernels/attention/tiles.cuh"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowsPerWarp = 32;  // two factors share each load of keys and values
constexpr int kRows = kWarps * kRowsPerWarp;
// Of a tile. Scores and outputs fill the registers: a wide head leaves room for fewer.
template <int kDim>
constexpr int kKeys = kDim == 64 ? 64 : 32;
constexpr int kStages = 2;

template <int kDim>
constexpr int kSharedBytes = (kRows + 2 * kStages * kKeys<kDim>)*kDim * 2;

struct Pointers {
  __nv_bfloat16* o;
  float* lse;
  const __nv_bfloat16* q;
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
};

// The state of 16 rows, of which a lane has two: lane / 4 and lane / 4 + 8.
template <int kDim>
struct Rows {
  float o[kDim / 8][4] = {};
  float max[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {};
};

template <int kDim>
using Scores = float[kKeys<kDim> / 8][4];

template <int kDim>
__device__ void multiply_keys(Scores<kDim> (&scores)[2], __nv_bfloat16* queries,
                              __nv_bfloat16* keys, int first_row) {
#pragma unroll 1
  for (int step = 0; step < kDim / 16; ++step) {
    unsigned a[2][4];
    load_factor<kDim>(a[0], queries, first_row, step);
    load_factor<kDim>(a[1], queries, first_row + 16, step);
#pragma unroll
    for (int block = 0; block < kKeys<kDim> / 16; ++block) {
      unsigned b[4];
      load_columns<kDim>(b, keys, 16 * block, step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(scores[half][2 * block], a[half], b[0], b[1]);
        multiply(scores[half][2 * block + 1], a[half], b[2], b[3]);
      }
    }
  }
}

template <int kDim>
__device__ void multiply_values(Rows<kDim> (&rows)[2], const Scores<kDim> (&scores)[2],
                                __nv_bfloat16* values) {
#pragma unroll
  for (int step = 0; step < kKeys<kDim> / 16; ++step) {
    unsigned a[2][4];
    as_factor(a[0], scores[0][2 * step], scores[0][2 * step + 1]);
    as_factor(a[1], scores[1][2 * step], scores[1][2 * step + 1]);
#pragma unroll
    for (int block = 0; block < kDim / 16; ++block) {
      unsigned b[4];
      load_inner<kDim>(b, values, 16 * step, block);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply(rows[half].o[2 * block], a[half], b[0], b[1]);
        multiply(rows[half].o[2 * block + 1], a[half], b[2], b[3]);
      }
    }
  }
}

template <int kDim>
__device__ void mask(Scores<kDim>& scores, const AttentionTask& task, int first_query,
                     int first_key) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int block = 0; block < kKeys<kDim> / 8; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = first_query + lane / 4 + 8 * (i / 2);
      const int key = first_key + 8 * block + 2 * (lane % 4) + i % 2;
      scores[block][i] = sees(task, query, key) ? scores[block][i] : kMinusInfinity;
    }
  }
}

// Scores become probabilities relative to the new maximum; what was summed before is rescaled.
template <int kDim>
__device__ void soften(Rows<kDim>& rows, Scores<kDim>& scores, float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float max = rows.max[half];
#pragma unroll
    for (int block = 0; block < kKeys<kDim> / 8; ++block) {
      max = fmaxf(max, fmaxf(scores[block][2 * half], scores[block][2 * half + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(0xffffffffU, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffffU, max, 2));
    const float origin = max == kMinusInfinity ? 0.0F : max * scale_log2;
    const float keep = exp2f(rows.max[half] * scale_log2 - origin);
    float sum = 0;
#pragma unroll
    for (int block = 0; block < kKeys<kDim> / 8; ++block) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[block][i] = exp2f(fmaf(scores[block][i], scale_log2, -origin));
        sum += scores[block][i];
      }
    }
    rows.sum[half] = rows.sum[half] * keep + sum;
    rows.max[half] = max;
#pragma unroll
    for (int block = 0; block < kDim / 8; ++block) {
      rows.o[block][2 * half] *= keep;
      rows.o[block][2 * half + 1] *= keep;
    }
  }
}

// Scores of a warp's rows with one tile of keys become probabilities, 0 for keys that are masked.
template <int kDim>
__device__ void weigh(Rows<kDim> (&rows)[2], Scores<kDim> (&scores)[2], const AttentionTask& task,
                      int first_query, int first_key) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + 16 * half;
    if (!sees_all(task, query, 16, first_key, kKeys<kDim>)) {
      mask<kDim>(scores[half], task, query, first_key);
    }
    soften(rows[half], scores[half], task.scale * kLog2E);
  }
}

// Divides by the sum over the quad of lanes that shares a row, and writes its log-sum-exp.
template <int kDim>
__device__ void normalise(Rows<kDim>& rows, float* lse, const AttentionTask& task,
                          int first_query) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    const float inverse = 1.0F / sum;
#pragma unroll
    for (int block = 0; block < kDim / 8; ++block) {
      rows.o[block][2 * half] *= inverse;
      rows.o[block][2 * half + 1] *= inverse;
    }
    const int query = first_query + lane / 4 + 8 * half;
    if (lane % 4 == 0 && query < task.query_length) {
      lse[static_cast<std::int64_t>(query) * task.heads] = rows.max[half] * task.scale + logf(sum);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(Pointers p, AttentionTask task) {
  extern __shared__ __align__(128) unsigned char shared[];
  __nv_bfloat16* queries = reinterpret_cast<__nv_bfloat16*>(shared);
  __nv_bfloat16* keys = queries + kRows * kDim;
  __nv_bfloat16* values = keys + kStages * kKeys<kDim> * kDim;
  // Late rows see the most keys: they start first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (task.heads / task.kv_heads);
  const std::int64_t sequence = blockIdx.z;
  const __nv_bfloat16* q = p.q + sequence * task.query_length * task.q_stride + head * kDim;
  const std::int64_t kv_offset =
      sequence * task.key_length * task.kv_stride + static_cast<std::int64_t>(kv_head) * kDim;
  const Range range = keys_of(task, first, min(first + kRows, task.query_length) - 1);
  const auto copy_keys = [&](int tile) {
    const int stage = tile % kStages;
    copy_tile<kDim, kKeys<kDim>, kThreads>(keys + stage * kKeys<kDim> * kDim, p.k + kv_offset,
                                           task.kv_stride, tile * kKeys<kDim>, task.key_length);
    copy_tile<kDim, kKeys<kDim>, kThreads>(values + stage * kKeys<kDim> * kDim, p.v + kv_offset,
                                           task.kv_stride, tile * kKeys<kDim>, task.key_length);
    close_copies();
  };

  const int warp = static_cast<int>(threadIdx.x / 32);
  const int first_row = warp * kRowsPerWarp;
  const int end_tile = (range.end + kKeys<kDim> - 1) / kKeys<kDim>;
  Rows<kDim> rows[2];
  copy_tile<kDim, kRows, kThreads>(queries, q, task.q_stride, first, task.query_length);
  copy_keys(range.begin / kKeys<kDim>);
  for (int tile = range.begin / kKeys<kDim>; tile < end_tile; ++tile) {
    __syncthreads();  // the other stage has been read
    if (tile + 1 < end_tile) {
      copy_keys(tile + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    const int offset = tile % kStages * kKeys<kDim> * kDim;
    Scores<kDim> scores[2] = {};
    multiply_keys<kDim>(scores, queries, keys + offset, first_row);
    weigh<kDim>(rows, scores, task, first + first_row, tile * kKeys<kDim>);
    multiply_values<kDim>(rows, scores, values + offset);
  }
  __nv_bfloat16* o = p.o + sequence * task.query_length * task.o_stride + head * kDim;
  float* lse = p.lse + sequence * task.query_length * task.heads + head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 16 * half;
    normalise(rows[half], lse, task, first + row);
    store_rows<kDim>(o + (first + row) * task.o_stride, task.o_stride, queries, row, rows[half].o,
                     task.query_length - first - row);
  }
}

template <int kDim>
void launch(const Pointers& pointers, const AttentionShape& shape, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((shape.query_length + kRows - 1) / kRows),
                    static_cast<unsigned>(shape.heads), static_cast<unsigned>(shape.batch));
  CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kSharedBytes<kDim>));
  forward_kernel<kDim><<<blocks, kThreads, kSharedBytes<kDim>, stream>>>(pointers, task_of(shape));
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void attention_forward_on_tensor_cores(__nv_bfloat16* o, float* lse, const __nv_bfloat16* q,
                                       const __nv_bfloat16* k, const __nv_bfloat16* v,
                                       const AttentionShape& shape, cudaStream_t stream) {
  const Pointers pointers{.o = o, .lse = lse, .q = q, .k = k, .v = v};
  if (shape.head_dim == 64) {
    launch<64>(pointers, shape, stream);
  } else {
    launch<128>(pointers, shape, stream);
  }
}

}  // namespace shardplan
