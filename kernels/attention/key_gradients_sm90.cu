// Gradients of keys and values; see gradients_sm90.cuh.
#include "kernels/attention/gradients_sm90.cuh"

namespace shardplan {
namespace {

constexpr int kQueryTile = 64;
constexpr int kQueryStages = 4;
template <int kDim>
using KeyShared = GradientShared<kDim, kQueryTile, kQueryStages>;

// Tiles of queries of all heads that share the block's keys, head after head.
struct QueryTiles {
  int first_head;
  int first_tile;
  int per_head;
  int count;

  __device__ QueryTiles(const AttentionTask& task, int kv_head, int first_key) {
    const int heads_per_kv = task.heads / task.kv_heads;
    const Range range =
        queries_of(task, first_key, min(first_key + kOwnedRows, task.key_length) - 1);
    first_head = kv_head * heads_per_kv;
    first_tile = range.begin / kQueryTile;
    per_head = max(0, (range.end + kQueryTile - 1) / kQueryTile - first_tile);
    count = per_head * heads_per_kv;
  }
};

// Where the walk over them stands.
struct QueryTile {
  int head;
  int first;  // query

  __device__ explicit QueryTile(const QueryTiles& tiles)
      : head(tiles.first_head), first(tiles.first_tile * kQueryTile) {}
  __device__ void advance(const QueryTiles& tiles) {
    first += kQueryTile;
    if (first == (tiles.first_tile + tiles.per_head) * kQueryTile) {
      first = tiles.first_tile * kQueryTile;
      ++head;
    }
  }
};

// By one warp. Every lane arrives for what it wrote itself.
template <int kDim, class G>
__device__ void copy_queries(KeyShared<kDim>& shared, const GradientMaps& maps,
                             const GradientPointers<G>& p, const AttentionTask& task,
                             const QueryTiles& tiles, int sequence) {
  const int lane = static_cast<int>(threadIdx.x);
  QueryTile tile(tiles);
#pragma unroll 1
  for (int step = 0; step < tiles.count; ++step, tile.advance(tiles)) {
    float lse[2] = {kInfinity, kInfinity};  // a probability of 0 where there is no query
    float delta[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = tile.first + lane + 32 * i;
      if (query < task.query_length) {
        const std::int64_t row = static_cast<std::int64_t>(sequence) * task.query_length + query;
        lse[i] = p.lse[row * task.heads + tile.head] * kLog2E;
        delta[i] = p.delta[row * task.heads + tile.head];
      }
    }
    const int stage = step % kQueryStages;
    Barrier* full = shared.ring.wait_free(step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      shared.lse[stage][lane + 32 * i] = lse[i];
      shared.delta[stage][lane + 32 * i] = delta[i];
    }
    if (lane == 0) {
      shared.copy_passing(maps.q, maps.dout, tile.head, tile.first, sequence, stage, full);
    } else {
      arrive(full);
    }
  }
}

// Scores [keys, queries] become probabilities.
__device__ void probabilities_by_key(float (&scores)[kQueryTile / 8][4], const float* lse,
                                     float scale_log2) {
#pragma unroll
  for (int block = 0; block < kQueryTile / 8; ++block) {
    const float2 own = *reinterpret_cast<const float2*>(lse + 8 * block + 2 * (threadIdx.x % 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[block][i] =
          quick_exp2(fmaf(scores[block][i], scale_log2, i % 2 == 0 ? -own.x : -own.y));
    }
  }
}

// Probabilities [keys, queries] become ds.
__device__ void score_gradients_by_key(float (&p)[kQueryTile / 8][4],
                                       const float (&products)[kQueryTile / 8][4],
                                       const float* delta) {
#pragma unroll
  for (int block = 0; block < kQueryTile / 8; ++block) {
    const float2 own = *reinterpret_cast<const float2*>(delta + 8 * block + 2 * (threadIdx.x % 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[block][i] *= products[block][i] - (i % 2 == 0 ? own.x : own.y);
    }
  }
}

template <int kDim>
__device__ void add_key_gradients(float (&dk)[kDim / 8][4], float (&dv)[kDim / 8][4],
                                  KeyShared<kDim>& shared, const AttentionTask& task,
                                  const QueryTiles& tiles, int group, int first) {
  const float scale_log2 = task.scale * kLog2E;
  const __nv_bfloat16* k = shared.owned[0] + group * kGroupRows * kDim;
  const __nv_bfloat16* v = shared.owned[1] + group * kGroupRows * kDim;
  const auto q = [&](int step) { return shared.passing[0][step % kQueryStages]; };
  const auto dout = [&](int step) { return shared.passing[1][step % kQueryStages]; };
  QueryTile tile(tiles);
  float scores[kQueryTile / 8][4];
  float products[kQueryTile / 8][4];
  unsigned p[kQueryTile / 16][4];
  unsigned ds[kQueryTile / 16][4];
  const auto find_probabilities = [&](int step) {
    mask_queries(scores, task, first, tile.first);
    tile.advance(tiles);
    probabilities_by_key(scores, shared.lse[step % kQueryStages], scale_log2);
  };
  // While dv grows, scores become ds.
  const auto add_values = [&](int step) {
    as_factor(p, scores);
    begin_products();
    add_product(dv, p, dout(step));
    close_products();
    wait_for_products<1>();
    hold(products);
    score_gradients_by_key(scores, products, shared.delta[step % kQueryStages]);
    wait_for_products<0>();
    hold(dv);
    as_factor(ds, scores);
  };
  const Turns turns(group);
  wait_for_phase(&shared.owned_full, 0);
  shared.ring.wait_full(0);
  turns.take();
  begin_products();
  multiply_rows<kDim>(scores, k, q(0));
  close_products();
  multiply_rows<kDim>(products, v, dout(0));
  close_products();
  turns.pass();
  wait_for_products<1>();
  hold(scores);
  find_probabilities(0);
  await_next(shared.ring, 0, tiles.count);
  add_values(0);
#pragma unroll 1
  for (int step = 1; step < tiles.count; ++step) {
    turns.take();
    begin_products();
    multiply_rows<kDim>(scores, k, q(step));
    close_products();
    add_product(dk, ds, q(step - 1));
    close_products();
    multiply_rows<kDim>(products, v, dout(step));
    close_products();
    turns.pass();
    wait_for_products<2>();
    hold(scores);
    find_probabilities(step);
    await_next(shared.ring, step, tiles.count);
    wait_for_products<1>();
    hold(dk);
    shared.ring.release(step - 1);
    add_values(step);
  }
  begin_products();
  add_product(dk, ds, q(tiles.count - 1));
  close_products();
  wait_for_products<0>();
  hold(dk);
}

template <int kDim, class G>
__global__ void __launch_bounds__(kGroupThreads, 1)
    key_gradients_kernel(const __grid_constant__ GradientMaps maps, GradientPointers<G> p,
                         AttentionTask task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  KeyShared<kDim>& shared = *reinterpret_cast<KeyShared<kDim>*>(memory);
  const int kv_head = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kOwnedRows;  // early keys are seen most
  const int sequence = static_cast<int>(blockIdx.z);
  const QueryTiles tiles(task, kv_head, first);
  shared.open(32);  // the lanes of copy_queries
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      shared.copy_owned(maps.k, maps.v, kv_head, first, sequence);
    }
    if (threadIdx.x < 32) {
      copy_queries<kDim>(shared, maps, p, task, tiles, sequence);
    }
  } else {
    take_registers<kConsumerRegisters>();
    const int group = consumer_of_warp();
    const int group_first = first + group * kGroupRows;
    float dk[kDim / 8][4] = {};
    float dv[kDim / 8][4] = {};
    if (tiles.count > 0) {
      add_key_gradients<kDim>(dk, dv, shared, task, tiles, group, group_first);
    } else {
      wait_for_phase(&shared.owned_full, 0);  // gradients are stored by way of the owned tiles
    }
    meet_warpgroup(group);
    const std::int64_t to =
        static_cast<std::int64_t>(sequence) * task.key_length * p.to.dkv_stride + kv_head * kDim;
    store_group<kDim>(p.dk + to, p.to.dkv_stride, shared.owned[0], group, group_first, dk,
                      task.scale, task.key_length, p.to.dkv_sum);
    store_group<kDim>(p.dv + to, p.to.dkv_stride, shared.owned[1], group, group_first, dv, 1.0F,
                      task.key_length, p.to.dkv_sum);
  }
}

}  // namespace

template <int kDim, class G>
void start_key_gradients(const GradientMaps& maps, const GradientPointers<G>& p,
                         const AttentionShape& shape, cudaStream_t stream) {
  start_gradients(key_gradients_kernel<kDim, G>,
                  blocks_of(shape.kv_heads, shape.key_length, shape.batch), sizeof(KeyShared<kDim>),
                  maps, p, shape, stream);
}

#define SHARDPLAN_INSTANTIATE(kDim, G)                                                     \
  template void start_key_gradients<kDim>(const GradientMaps&, const GradientPointers<G>&, \
                                          const AttentionShape&, cudaStream_t);
SHARDPLAN_INSTANTIATE(64, float)
SHARDPLAN_INSTANTIATE(64, __nv_bfloat16)
SHARDPLAN_INSTANTIATE(128, float)
SHARDPLAN_INSTANTIATE(128, __nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
