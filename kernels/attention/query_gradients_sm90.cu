// Gradients of queries; see gradients_sm90.cuh.
#include "kernels/attention/gradients_sm90.cuh"

namespace shardplan {
namespace {

constexpr int kKeyTile = 64;
constexpr int kKeyStages = 4;
template <int kDim>
using QueryShared = GradientShared<kDim, kKeyTile, kKeyStages>;

template <int kDim>
__device__ void add_query_gradients(float (&dq)[kDim / 8][4], QueryShared<kDim>& shared,
                                    const AttentionTask& task, const Range& tiles, int group,
                                    int first, const float (&lse_log2)[2],
                                    const float (&delta)[2]) {
  const float scale_log2 = task.scale * kLog2E;
  const __nv_bfloat16* q = shared.owned[0] + group * kGroupRows * kDim;
  const __nv_bfloat16* dout = shared.owned[1] + group * kGroupRows * kDim;
  const auto k = [&](int step) { return shared.passing[0][step % kKeyStages]; };
  const auto v = [&](int step) { return shared.passing[1][step % kKeyStages]; };
  const int count = tiles.end - tiles.begin;
  float scores[kKeyTile / 8][4];
  float products[kKeyTile / 8][4];
  unsigned ds[kKeyTile / 16][4];
  const auto find_probabilities = [&](int step) {
    mask_keys(scores, task, first, (tiles.begin + step) * kKeyTile);
#pragma unroll
    for (int block = 0; block < kKeyTile / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[block][i] = quick_exp2(fmaf(scores[block][i], scale_log2, -lse_log2[i / 2]));
      }
    }
  };
  const auto find_score_gradients = [&] {
#pragma unroll
    for (int block = 0; block < kKeyTile / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) { scores[block][i] *= products[block][i] - delta[i / 2]; }
    }
  };
  const Turns turns(group);
  wait_for_phase(&shared.owned_full, 0);
  shared.ring.wait_full(0);
  turns.take();
  begin_products();
  multiply_rows<kDim>(scores, q, k(0));
  close_products();
  multiply_rows<kDim>(products, dout, v(0));
  close_products();
  turns.pass();
  wait_for_products<1>();
  hold(scores);
  find_probabilities(0);
  await_next(shared.ring, 0, count);
  wait_for_products<0>();
  hold(products);
  find_score_gradients();
  as_factor(ds, scores);
#pragma unroll 1
  for (int step = 1; step < count; ++step) {
    turns.take();
    begin_products();
    multiply_rows<kDim>(scores, q, k(step));
    close_products();
    multiply_rows<kDim>(products, dout, v(step));
    close_products();
    add_product(dq, ds, k(step - 1));
    close_products();
    turns.pass();
    wait_for_products<2>();
    hold(scores);
    find_probabilities(step);
    await_next(shared.ring, step, count);
    wait_for_products<1>();
    hold(products);
    find_score_gradients();
    wait_for_products<0>();
    hold(dq);
    shared.ring.release(step - 1);
    as_factor(ds, scores);
  }
  begin_products();
  add_product(dq, ds, k(count - 1));
  close_products();
  wait_for_products<0>();
  hold(dq);
}

template <int kDim, class G>
__global__ void __launch_bounds__(kGroupThreads, 1)
    query_gradients_kernel(const __grid_constant__ GradientMaps maps, GradientPointers<G> p,
                           AttentionTask task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  QueryShared<kDim>& shared = *reinterpret_cast<QueryShared<kDim>*>(memory);
  const int head = static_cast<int>(blockIdx.x);
  // Late rows see the most keys: they start first.
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kOwnedRows;
  const int sequence = static_cast<int>(blockIdx.z);
  const Range keys = keys_of(task, first, min(first + kOwnedRows, task.query_length) - 1);
  const Range tiles = {keys.begin / kKeyTile, (keys.end + kKeyTile - 1) / kKeyTile};
  shared.open(1);
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      shared.copy_owned(maps.q, maps.dout, head, first, sequence);
      const int kv_head = head / (task.heads / task.kv_heads);
#pragma unroll 1
      for (int step = 0; step < tiles.end - tiles.begin; ++step) {
        Barrier* full = shared.ring.wait_free(step);
        shared.copy_passing(maps.k, maps.v, kv_head, (tiles.begin + step) * kKeyTile, sequence,
                            step % kKeyStages, full);
      }
    }
  } else {
    take_registers<kConsumerRegisters>();
    const int group = consumer_of_warp();
    const int group_first = first + group * kGroupRows;
    const std::int64_t first_row = static_cast<std::int64_t>(sequence) * task.query_length;
    float lse_log2[2] = {kInfinity, kInfinity};
    float delta[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = group_first + row_of_lane() + 8 * half;
      if (query < task.query_length) {
        lse_log2[half] = p.lse[(first_row + query) * task.heads + head] * kLog2E;
        delta[half] = p.delta[(first_row + query) * task.heads + head];
      }
    }
    float dq[kDim / 8][4] = {};
    add_query_gradients<kDim>(dq, shared, task, tiles, group, group_first, lse_log2, delta);
    meet_warpgroup(group);
    store_group<kDim>(p.dq + first_row * p.to.dq_stride + head * kDim, p.to.dq_stride,
                      shared.owned[0], group, group_first, dq, task.scale, task.query_length,
                      p.to.dq_sum);
  }
}

}  // namespace

template <int kDim, class G>
void start_query_gradients(const GradientMaps& maps, const GradientPointers<G>& p,
                           const AttentionShape& shape, cudaStream_t stream) {
  start_gradients(query_gradients_kernel<kDim, G>,
                  blocks_of(shape.heads, shape.query_length, shape.batch),
                  sizeof(QueryShared<kDim>), maps, p, shape, stream);
}

#define SHARDPLAN_INSTANTIATE(kDim, G)                                                       \
  template void start_query_gradients<kDim>(const GradientMaps&, const GradientPointers<G>&, \
                                            const AttentionShape&, cudaStream_t);
SHARDPLAN_INSTANTIATE(64, float)
SHARDPLAN_INSTANTIATE(64, __nv_bfloat16)
SHARDPLAN_INSTANTIATE(128, float)
SHARDPLAN_INSTANTIATE(128, __nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
