// Backward attention on tensor cores without atomics: one kernel owns tiles of keys and adds dk and
// dv up over all queries, one owns tiles of queries and adds dq up over all keys. Both compute the
// probabilities again from the log-sum-exp (Dao, arXiv 2307.08691, Algorithm 2, taken apart).
//   ds = p * (dout . v - delta),  dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
#include "kernels/attention/gradients.cuh"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kOwned = 16 * kWarps;  // rows that a block owns, 16 to a warp
constexpr int kTile = 64;            // rows that pass by
constexpr int kStages = 2;

// Two owned matrices, and two that pass by in stages, with log-sum-exp and delta beside them.
template <int kDim>
constexpr int kSharedBytes = (2 * kOwned + 2 * kStages * kTile) * kDim * 2 + kStages * 2 * kTile *
                                                                                 4;

template <int kDim>
struct Shared {
  __nv_bfloat16* owned[2];
  __nv_bfloat16* passing[2];  // kStages tiles each
  float* lse;                 // kStages * kTile
  float* delta;

  __device__ explicit Shared(unsigned char* memory) {
    __nv_bfloat16* next = reinterpret_cast<__nv_bfloat16*>(memory);
    owned[0] = next;
    owned[1] = owned[0] + kOwned * kDim;
    passing[0] = owned[1] + kOwned * kDim;
    passing[1] = passing[0] + kStages * kTile * kDim;
    lse = reinterpret_cast<float*>(passing[1] + kStages * kTile * kDim);
    delta = lse + kStages * kTile;
  }
};

using Scores = float[kTile / 8][4];

// Uses tiles first .. end - 1 in turn, while the next one is on its way into the other stage.
template <class Copy, class Use>
__device__ void pass_by(int first, int end, const Copy& copy, const Use& use) {
  if (first < end) {
    copy(first);
  }
  for (int tile = first; tile < end; ++tile) {
    __syncthreads();  // the other stage has been read
    if (tile + 1 < end) {
      copy(tile + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    use(tile);
  }
}

// scores = rows `first` on of `left` times all rows of `right`.
template <int kDim>
__device__ void multiply_rows(Scores& scores, __nv_bfloat16* left, int first,
                              __nv_bfloat16* right) {
#pragma unroll 1
  for (int step = 0; step < kDim / 16; ++step) {
    unsigned a[4];
    load_factor<kDim>(a, left, first, step);
#pragma unroll
    for (int block = 0; block < kTile / 16; ++block) {
      unsigned b[4];
      load_columns<kDim>(b, right, 16 * block, step);
      multiply(scores[2 * block], a, b[0], b[1]);
      multiply(scores[2 * block + 1], a, b[2], b[3]);
    }
  }
}

// sum += scores times the rows of `right`.
template <int kDim>
__device__ void add_product(float (&sum)[kDim / 8][4], const Scores& scores, __nv_bfloat16* right) {
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
    unsigned a[4];
    as_factor(a, scores[2 * step], scores[2 * step + 1]);
#pragma unroll
    for (int block = 0; block < kDim / 16; ++block) {
      unsigned b[4];
      load_inner<kDim>(b, right, 16 * step, block);
      multiply(sum[2 * block], a, b[0], b[1]);
      multiply(sum[2 * block + 1], a, b[2], b[3]);
    }
  }
}

// Tiles of queries and output gradients of all heads that share the keys of the block.
template <int kDim, class G>
struct QueryTiles {
  const GradientPointers<G>& p;
  const AttentionTask& task;
  std::int64_t sequence;
  int first_head;
  int first_tile;
  int num_tiles;  // of one head

  __device__ void copy(Shared<kDim>& shared, int index) const {
    const int head = first_head + index / num_tiles;
    const int first = (first_tile + index % num_tiles) * kTile;
    const int stage = index % kStages;
    const std::int64_t row = sequence * task.query_length;
    copy_tile<kDim, kTile, kThreads>(shared.passing[0] + stage * kTile * kDim,
                                     p.q + row * task.q_stride + head * kDim, task.q_stride, first,
                                     task.query_length);
    copy_tile<kDim, kTile, kThreads>(shared.passing[1] + stage * kTile * kDim,
                                     p.dout + row * task.o_stride + head * kDim, task.o_stride,
                                     first, task.query_length);
    close_copies();
    const int query = first + static_cast<int>(threadIdx.x) % kTile;
    const std::int64_t at = (sequence * task.query_length + query) * task.heads + head;
    if (threadIdx.x < kTile) {
      shared.lse[stage * kTile + threadIdx.x] = query < task.query_length ? p.lse[at] : 0.0F;
    } else if (threadIdx.x < 2 * kTile) {
      shared.delta[stage * kTile + threadIdx.x - kTile] =
          query < task.query_length ? p.delta[at] : 0.0F;
    }
  }
};

// Scores [keys, queries] become probabilities.
__device__ void probabilities_by_key(Scores& scores, const AttentionTask& task, int first_key,
                                     int first_query, const float* lse) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int block = 0; block < kTile / 8; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + lane / 4 + 8 * (i / 2);
      const int column = 8 * block + 2 * (lane % 4) + i % 2;
      const int query = first_query + column;
      const float value = exp2f(kLog2E * fmaf(scores[block][i], task.scale, -lse[column]));
      scores[block][i] = query < task.query_length && sees(task, query, key) ? value : 0.0F;
    }
  }
}

template <int kDim, class G>
__global__ void __launch_bounds__(kThreads, 1)
    key_gradients_kernel(GradientPointers<G> p, AttentionTask task) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<kDim> shared(memory);
  const int first = static_cast<int>(blockIdx.x) * kOwned;  // early keys are seen most
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t sequence = blockIdx.z;
  const int heads_per_kv = task.heads / task.kv_heads;
  const std::int64_t kv_offset =
      sequence * task.key_length * task.kv_stride + static_cast<std::int64_t>(kv_head) * kDim;
  copy_tile<kDim, kOwned, kThreads>(shared.owned[0], p.k + kv_offset, task.kv_stride, first,
                                    task.key_length);
  copy_tile<kDim, kOwned, kThreads>(shared.owned[1], p.v + kv_offset, task.kv_stride, first,
                                    task.key_length);
  const Range range = queries_of(task, first, min(first + kOwned, task.key_length) - 1);
  const int first_tile = range.begin / kTile;
  const int num_tiles = max(0, (range.end + kTile - 1) / kTile - first_tile);
  const QueryTiles<kDim, G> queries{p,          task,     sequence, kv_head * heads_per_kv,
                                    first_tile, num_tiles};
  const int count = num_tiles * heads_per_kv;
  const int warp_row = static_cast<int>(threadIdx.x / 32) * 16;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float dk[kDim / 8][4] = {};
  float dv[kDim / 8][4] = {};
  const auto copy_queries = [&](int index) { queries.copy(shared, index); };
  pass_by(0, count, copy_queries, [&](int index) {
    const int stage = index % kStages;
    __nv_bfloat16* q = shared.passing[0] + stage * kTile * kDim;
    __nv_bfloat16* dout = shared.passing[1] + stage * kTile * kDim;
    const int first_query = (first_tile + index % num_tiles) * kTile;
    Scores scores = {};
    multiply_rows<kDim>(scores, shared.owned[0], warp_row, q);
    probabilities_by_key(scores, task, first + warp_row, first_query, shared.lse + stage * kTile);
    add_product<kDim>(dv, scores, dout);
    Scores products = {};
    multiply_rows<kDim>(products, shared.owned[1], warp_row, dout);
#pragma unroll
    for (int block = 0; block < kTile / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * block + 2 * (lane % 4) + i % 2;
        scores[block][i] *= products[block][i] - shared.delta[stage * kTile + column];
      }
    }
    add_product<kDim>(dk, scores, q);
  });
  wait_for_all_copies();  // of owned rows, too, where no query sees these keys
  __syncthreads();
  const int row = first + warp_row;
  const std::int64_t to = (sequence * task.key_length + row) * p.to.dkv_stride + kv_head * kDim;
  store_gradient<kDim>(p.dk + to, p.to.dkv_stride, shared.owned[0], warp_row, dk, task.scale,
                       task.key_length - row, p.to.dkv_sum);
  store_gradient<kDim>(p.dv + to, p.to.dkv_stride, shared.owned[1], warp_row, dv, 1.0F,
                       task.key_length - row, p.to.dkv_sum);
}

// Scores [queries, keys] become ds: probabilities times what the products are beyond delta.
__device__ void score_gradients(Scores& scores, const Scores& products, const AttentionTask& task,
                                int first_query, int first_key, const float (&lse)[2],
                                const float (&delta)[2]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int block = 0; block < kTile / 8; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = first_query + lane / 4 + 8 * (i / 2);
      const int key = first_key + 8 * block + 2 * (lane % 4) + i % 2;
      const float p = exp2f(kLog2E * fmaf(scores[block][i], task.scale, -lse[i / 2]));
      scores[block][i] = sees(task, query, key) ? p * (products[block][i] - delta[i / 2]) : 0.0F;
    }
  }
}

template <int kDim, class G>
__global__ void __launch_bounds__(kThreads, 1)
    query_gradients_kernel(GradientPointers<G> p, AttentionTask task) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<kDim> shared(memory);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kOwned;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (task.heads / task.kv_heads);
  const std::int64_t sequence = blockIdx.z;
  const std::int64_t query_row = sequence * task.query_length;
  const std::int64_t kv_offset =
      sequence * task.key_length * task.kv_stride + static_cast<std::int64_t>(kv_head) * kDim;
  copy_tile<kDim, kOwned, kThreads>(shared.owned[0], p.q + query_row * task.q_stride + head * kDim,
                                    task.q_stride, first, task.query_length);
  copy_tile<kDim, kOwned, kThreads>(shared.owned[1],
                                    p.dout + query_row * task.o_stride + head * kDim, task.o_stride,
                                    first, task.query_length);
  const auto copy_keys = [&](int tile) {
    const int stage = tile % kStages;
    copy_tile<kDim, kTile, kThreads>(shared.passing[0] + stage * kTile * kDim, p.k + kv_offset,
                                     task.kv_stride, tile * kTile, task.key_length);
    copy_tile<kDim, kTile, kThreads>(shared.passing[1] + stage * kTile * kDim, p.v + kv_offset,
                                     task.kv_stride, tile * kTile, task.key_length);
    close_copies();
  };
  const Range range = keys_of(task, first, min(first + kOwned, task.query_length) - 1);
  const int end_tile = (range.end + kTile - 1) / kTile;
  const int warp_row = static_cast<int>(threadIdx.x / 32) * 16;
  const int row = first + warp_row;
  float lse[2] = {};
  float delta[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = row + static_cast<int>(threadIdx.x % 32) / 4 + 8 * half;
    const std::int64_t at = (sequence * task.query_length + query) * task.heads + head;
    if (query < task.query_length) {
      lse[half] = p.lse[at];
      delta[half] = p.delta[at];
    }
  }
  float dq[kDim / 8][4] = {};
  pass_by(range.begin / kTile, end_tile, copy_keys, [&](int tile) {
    const int offset = tile % kStages * kTile * kDim;
    Scores scores = {};
    Scores products = {};
    multiply_rows<kDim>(scores, shared.owned[0], warp_row, shared.passing[0] + offset);
    multiply_rows<kDim>(products, shared.owned[1], warp_row, shared.passing[1] + offset);
    score_gradients(scores, products, task, row, tile * kTile, lse, delta);
    add_product<kDim>(dq, scores, shared.passing[0] + offset);
  });
  store_gradient<kDim>(p.dq + (query_row + row) * p.to.dq_stride + head * kDim, p.to.dq_stride,
                       shared.owned[0], warp_row, dq, task.scale, task.query_length - row,
                       p.to.dq_sum);
}

unsigned blocks_of(std::int64_t rows) {
  return static_cast<unsigned>((rows + kOwned - 1) / kOwned);
}

template <int kDim, class G>
void launch(const GradientPointers<G>& pointers, const AttentionShape& shape, cudaStream_t stream) {
  const auto configure = [](auto* kernel) {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kSharedBytes<kDim>));
  };
  const AttentionTask task = task_of(shape);
  const unsigned batch = static_cast<unsigned>(shape.batch);
  configure(key_gradients_kernel<kDim, G>);
  key_gradients_kernel<kDim>
      <<<dim3(blocks_of(shape.key_length), static_cast<unsigned>(shape.kv_heads), batch), kThreads,
         kSharedBytes<kDim>, stream>>>(pointers, task);
  CUDA_CHECK(cudaGetLastError());
  configure(query_gradients_kernel<kDim, G>);
  query_gradients_kernel<kDim>
      <<<dim3(blocks_of(shape.query_length), static_cast<unsigned>(shape.heads), batch), kThreads,
         kSharedBytes<kDim>, stream>>>(pointers, task);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

template <class G>
void attention_backward_on_tensor_cores(const GradientPointers<G>& pointers,
                                        const AttentionShape& shape, cudaStream_t stream) {
  if (shape.head_dim == 64) {
    launch<64>(pointers, shape, stream);
  } else {
    launch<128>(pointers, shape, stream);
  }
}

template void attention_backward_on_tensor_cores(const GradientPointers<float>&,
                                                 const AttentionShape&, cudaStream_t);
template void attention_backward_on_tensor_cores(const GradientPointers<__nv_bfloat16>&,
                                                 const AttentionShape&, cudaStream_t);

}  // namespace shardplan
