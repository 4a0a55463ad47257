#include "kernels/attention/gradients_sm90.cuh"

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
void attention_backward_on_warpgroups(const GradientPointers<G>& pointers,
                                      const AttentionShape& shape, cudaStream_t stream) {
  if (shape.head_dim == 64) {
    launch<64>(pointers, shape, stream);
  } else {
    launch<128>(pointers, shape, stream);
  }
}

template void attention_backward_on_warpgroups(const GradientPointers<float>&,
                                               const AttentionShape&, cudaStream_t);
template void attention_backward_on_warpgroups(const GradientPointers<__nv_bfloat16>&,
                                               const AttentionShape&, cudaStream_t);

}  // namespace shardplan
