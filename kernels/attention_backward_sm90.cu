#include "kernels/attention_gradients_sm90.cuh"
#include "kernels/attention_tensor_cores.h"

namespace shardplan {
namespace {

template <int kDim, class G>
void launch(const GradientPointers<G>& p, const AttentionShape& s, cudaStream_t stream) {
  const GradientMaps maps{
      .q = map_heads(p.q, kDim, s.heads, s.query_length, s.batch, s.q_stride),
      .k = map_heads(p.k, kDim, s.kv_heads, s.key_length, s.batch, s.kv_stride),
      .v = map_heads(p.v, kDim, s.kv_heads, s.key_length, s.batch, s.kv_stride),
      .dout = map_heads(p.dout, kDim, s.heads, s.query_length, s.batch, s.o_stride)};
  start_key_gradients<kDim>(maps, p, s, stream);
  start_query_gradients<kDim>(maps, p, s, stream);
}

}  // namespace

template <class G>
void attention_backward_on_warpgroups(G* dq, G* dk, G* dv, const float* delta,
                                      const __nv_bfloat16* dout, const __nv_bfloat16* q,
                                      const __nv_bfloat16* k, const __nv_bfloat16* v,
                                      const float* lse, const AttentionShape& shape,
                                      const AttentionGradientShape& gradients,
                                      cudaStream_t stream) {
  const GradientPointers<G> pointers{dq, dk, dv, delta, dout, q, k, v, lse, gradients};
  if (shape.head_dim == 64) {
    launch<64>(pointers, shape, stream);
  } else {
    launch<128>(pointers, shape, stream);
  }
}

#define SHARDPLAN_INSTANTIATE(G)                                                                  \
  template void attention_backward_on_warpgroups(                                                 \
      G*, G*, G*, const float*, const __nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*, \
      const __nv_bfloat16*, const float*, const AttentionShape&, const AttentionGradientShape&,   \
      cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
