// Forward attention for sm_90a: a block owns 128 rows of queries of one head; a warpgroup copies
// tiles of keys and values, two compute, 64 rows each, with a running maximum and sum (Dao, arXiv
// 2307.08691, Algorithm 1). Scores of the next tile are computed while the values of this one are
// added up (Shah et al., arXiv 2407.08608, section 3.2).
#include "kernels/attention/tensor_cores.h"
#include "kernels/attention/warpgroups.cuh"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr int kKeys = 128;
constexpr int kStages = 2;

template <int kDim>
struct Shared {
  __nv_bfloat16 q[kOwnedRows * kDim];  // a tile for each warpgroup
  __nv_bfloat16 k[kStages][kKeys * kDim];
  __nv_bfloat16 v[kStages][kKeys * kDim];
  Barrier q_full;
  Ring<kStages> k_ring;
  Ring<kStages> v_ring;
};

struct Maps {
  CUtensorMap q, k, v;
};

// Tiles of keys, from the last to the first: those that need a mask come early.
struct KeyTiles {
  int last;
  int count;

  __device__ KeyTiles(const AttentionTask& task, int first_query) {
    const int last_query = min(first_query + kOwnedRows, task.query_length) - 1;
    const Range range = keys_of(task, first_query, last_query);
    last = (range.end + kKeys - 1) / kKeys - 1;
    count = last + 1 - range.begin / kKeys;
  }
  __device__ int first_key(int step) const { return (last - step) * kKeys; }
};

template <int kDim>
__device__ void copy_tiles(Shared<kDim>& shared, const Maps& maps, const KeyTiles& tiles, int first,
                           int head, int kv_head, int sequence) {
  constexpr int kTileBytes = kKeys * kDim * 2;
  arrive_expecting(&shared.q_full, kOwnedRows * kDim * 2);
  for (int group = 0; group < kConsumers; ++group) {
    copy_rows<kDim, kGroupRows>(shared.q + group * kGroupRows * kDim, maps.q, head,
                                first + group * kGroupRows, sequence, &shared.q_full);
  }
#pragma unroll 1
  for (int step = 0; step < tiles.count; ++step) {
    Barrier* k_full = shared.k_ring.wait_free(step);
    arrive_expecting(k_full, kTileBytes);
    copy_rows<kDim, kKeys>(shared.k[step % kStages], maps.k, kv_head, tiles.first_key(step),
                           sequence, k_full);
    Barrier* v_full = shared.v_ring.wait_free(step);
    arrive_expecting(v_full, kTileBytes);
    copy_rows<kDim, kKeys>(shared.v[step % kStages], maps.v, kv_head, tiles.first_key(step),
                           sequence, v_full);
  }
}

// Of a lane's two rows.
struct RunningSoftmax {
  float max[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {};  // of the lane's columns

  // Scores become probabilities relative to the new maximum; `keep` is what earlier ones change by.
  template <int kBlocks>
  __device__ void update(float (&scores)[kBlocks][4], float (&keep)[2], float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = max[half];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        highest = fmaxf(highest, fmaxf(scores[block][2 * half], scores[block][2 * half + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffU, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffU, highest, 2));
      const float origin = highest == kMinusInfinity ? 0.0F : highest * scale_log2;
      keep[half] = quick_exp2(max[half] * scale_log2 - origin);
      max[half] = highest;
      float added = 0;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[block][i] = quick_exp2(fmaf(scores[block][i], scale_log2, -origin));
          added += scores[block][i];
        }
      }
      sum[half] = sum[half] * keep[half] + added;
    }
  }

  // Adds the sums of the four lanes of a row up.
  __device__ void finish() {
#pragma unroll
    for (float& total : sum) {
      total += __shfl_xor_sync(0xffffffffU, total, 1);
      total += __shfl_xor_sync(0xffffffffU, total, 2);
    }
  }
};

template <int kBlocks>
__device__ void scale_rows(float (&c)[kBlocks][4], const float (&factor)[2]) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) { c[block][i] *= factor[i / 2]; }
  }
}

template <int kDim>
__device__ void compute(float (&o)[kDim / 8][4], RunningSoftmax& softmax, Shared<kDim>& shared,
                        const KeyTiles& tiles, const AttentionTask& task, int group, int first) {
  const float scale_log2 = task.scale * kLog2E;
  const __nv_bfloat16* q = shared.q + group * kGroupRows * kDim;
  float scores[kKeys / 8][4];
  unsigned p[kKeys / 16][4];
  float keep[2];
  const Turns turns(group);
  wait_for_phase(&shared.q_full, 0);
  shared.k_ring.wait_full(0);
  turns.take();
  begin_products();
  multiply_rows<kDim>(scores, q, shared.k[0]);
  close_products();
  turns.pass();
  wait_for_products<0>();
  hold(scores);
  shared.k_ring.release(0);
  mask_keys(scores, task, first, tiles.first_key(0));
  softmax.update(scores, keep, scale_log2);
  shared.v_ring.wait_full(0);
  as_factor(p, scores);
#pragma unroll 1
  for (int step = 1; step < tiles.count; ++step) {
    shared.k_ring.wait_full(step);
    turns.take();
    begin_products();
    multiply_rows<kDim>(scores, q, shared.k[step % kStages]);
    close_products();
    add_product(o, p, shared.v[(step - 1) % kStages]);
    close_products();
    turns.pass();
    wait_for_products<1>();
    hold(scores);
    shared.k_ring.release(step);
    mask_keys(scores, task, first, tiles.first_key(step));
    softmax.update(scores, keep, scale_log2);
    // Here rather than before the values are used: the branch keeps the assembler from moving the
    // wait for products to before the exponentials.
    shared.v_ring.wait_full(step);
    wait_for_products<0>();
    hold(o);
    shared.v_ring.release(step - 1);
    scale_rows(o, keep);
    as_factor(p, scores);
  }
  begin_products();
  add_product(o, p, shared.v[(tiles.count - 1) % kStages]);
  close_products();
  wait_for_products<0>();
  hold(o);
}

template <int kDim>
__global__ void __launch_bounds__(kGroupThreads, 1)
    forward_kernel(const __grid_constant__ Maps maps, __nv_bfloat16* o_out, float* lse_out,
                   AttentionTask task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<kDim>& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const int head = static_cast<int>(blockIdx.x);
  // Late rows see the most keys: they start first.
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kOwnedRows;
  const int sequence = static_cast<int>(blockIdx.z);
  const KeyTiles tiles(task, first);
  if (threadIdx.x == 0) {
    open_barrier(&shared.q_full, 1);
    shared.k_ring.open(1, kConsumerThreads);
    shared.v_ring.open(1, kConsumerThreads);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      copy_tiles(shared, maps, tiles, first, head, head / (task.heads / task.kv_heads), sequence);
    }
  } else {
    take_registers<kConsumerRegisters>();
    const int group = consumer_of_warp();
    const int group_first = first + group * kGroupRows;
    float o[kDim / 8][4] = {};
    RunningSoftmax softmax;
    compute<kDim>(o, softmax, shared, tiles, task, group, group_first);
    softmax.finish();
    const float inverse[2] = {1.0F / softmax.sum[0], 1.0F / softmax.sum[1]};
    scale_rows(o, inverse);
    const std::int64_t row = static_cast<std::int64_t>(sequence) * task.query_length;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = group_first + row_of_lane() + 8 * half;
      if (threadIdx.x % 4 == 0 && query < task.query_length) {
        lse_out[(row + query) * task.heads + head] =
            softmax.max[half] * task.scale + logf(softmax.sum[half]);
      }
    }
    // The tile of queries is free, once all warps have read it.
    meet_warpgroup(group);
    const int warp_first = group_first + row_of_warp();
    store_rows<kDim>(o_out + (row + warp_first) * task.o_stride + head * kDim, task.o_stride,
                     shared.q + group * kGroupRows * kDim, row_of_warp(), o,
                     task.query_length - warp_first);
  }
}

template <int kDim>
void launch(__nv_bfloat16* o, float* lse, const __nv_bfloat16* q, const __nv_bfloat16* k,
            const __nv_bfloat16* v, const AttentionShape& s, cudaStream_t stream) {
  const Maps maps{.q = map_heads(q, kDim, s.heads, s.query_length, s.batch, s.q_stride),
                  .k = map_heads(k, kDim, s.kv_heads, s.key_length, s.batch, s.kv_stride),
                  .v = map_heads(v, kDim, s.kv_heads, s.key_length, s.batch, s.kv_stride)};
  constexpr int kBytes = sizeof(Shared<kDim>);
  CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kBytes));
  forward_kernel<kDim>
      <<<blocks_of(s.heads, s.query_length, s.batch), kGroupThreads, kBytes, stream>>>(maps, o, lse,
                                                                                       task_of(s));
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void attention_forward_on_warpgroups(__nv_bfloat16* o, float* lse, const __nv_bfloat16* q,
                                     const __nv_bfloat16* k, const __nv_bfloat16* v,
                                     const AttentionShape& shape, cudaStream_t stream) {
  if (shape.head_dim == 64) {
    launch<64>(o, lse, q, k, v, shape, stream);
  } else {
    launch<128>(o, lse, q, k, v, shape, stream);
  }
}

}  // namespace shardplan
