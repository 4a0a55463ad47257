#include "kernels/attention_trial.h"

#include <algorithm>

#include "kernels/random.h"

namespace shardplan {
namespace {

AttentionShape packed(AttentionShape shape) {
  shape.q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  shape.kv_stride = shape.q_stride;
  shape.o_stride = shape.heads * shape.head_dim;
  return shape;
}

}  // namespace

AttentionTrial::AttentionTrial(const AttentionLibrary& library, const AttentionShape& shape,
                               AttentionOrder order, cudaStream_t stream)
    : shape_(packed(shape)),
      forward_(library, AttentionTypes::kBf16, shape_),
      backward_(library, AttentionTypes::kBf16, shape_,
                {.dq_stride = shape_.q_stride, .dkv_stride = shape_.kv_stride}, order),
      qkv_(shape_.batch * shape_.query_length * shape_.q_stride),
      dqkv_(shape_.batch * shape_.query_length * shape_.q_stride),
      o_(shape_.batch * shape_.query_length * shape_.o_stride),
      dout_(shape_.batch * shape_.query_length * shape_.o_stride),
      lse_(shape_.batch * shape_.query_length * shape_.heads),
      workspace_(
          std::max<std::int64_t>({1, forward_.workspace_bytes(), backward_.workspace_bytes()})) {
  const std::int64_t rows = shape_.batch * shape_.query_length;
  fill_normal(qkv_.data(), 1, 1, 0, rows * shape_.q_stride, stream);
  fill_normal(dout_.data(), 1, 2, 0, rows * shape_.o_stride, stream);
}

void AttentionTrial::run_forward(cudaStream_t stream) {
  const __nv_bfloat16* k = qkv_.data() + shape_.heads * shape_.head_dim;
  const __nv_bfloat16* v = k + shape_.kv_heads * shape_.head_dim;
  forward_.run(o_.data(), lse_.data(), qkv_.data(), k, v, workspace_.data(), stream);
}

void AttentionTrial::run_backward(cudaStream_t stream) {
  const std::int64_t to_k = shape_.heads * shape_.head_dim;
  const std::int64_t to_v = to_k + shape_.kv_heads * shape_.head_dim;
  backward_.run(dqkv_.data(), dqkv_.data() + to_k, dqkv_.data() + to_v, dout_.data(), qkv_.data(),
                qkv_.data() + to_k, qkv_.data() + to_v, o_.data(), lse_.data(), workspace_.data(),
                stream);
}

double AttentionTrial::forward_flops() const {
  return 2.0 * static_cast<double>(shape_.batch * shape_.query_length * shape_.key_length) *
         static_cast<double>(shape_.heads * shape_.head_dim);
}

}  // namespace shardplan
