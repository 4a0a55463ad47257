#include "kernels/attention/trial.h"

#include <algorithm>

#include "kernels/pointwise/random.h"

namespace shardplan {
namespace {

AttentionShape packed(AttentionShape shape) {
  shape.q_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  shape.kv_stride = shape.q_stride;
  shape.o_stride = shape.heads * shape.head_dim;
  return shape;
}

// Keys have more rows than queries where these stand behind the first of them.
std::int64_t rows_of(const AttentionShape& shape) {
  return shape.batch * std::max(shape.query_length, shape.key_length);
}

}  // namespace

AttentionTrial::AttentionTrial(const AttentionLibrary& library, const AttentionShape& shape,
                               AttentionOrder order, cudaStream_t stream)
    : shape_(packed(shape)),
      forward_(library, AttentionTypes::kBf16, shape_),
      backward_(library, AttentionTypes::kBf16, shape_,
                {.dq_stride = shape_.q_stride, .dkv_stride = shape_.kv_stride}, order),
      qkv_(rows_of(shape_) * shape_.q_stride),
      dqkv_(rows_of(shape_) * shape_.q_stride),
      o_(shape_.batch * shape_.query_length * shape_.o_stride),
      dout_(shape_.batch * shape_.query_length * shape_.o_stride),
      lse_(shape_.batch * shape_.query_length * shape_.heads),
      workspace_(
          std::max<std::int64_t>({1, forward_.workspace_bytes(), backward_.workspace_bytes()})) {
  fill_normal(qkv_.data(), 1, 1, 0, rows_of(shape_) * shape_.q_stride, stream);
  fill_normal(dout_.data(), 1, 2, 0, shape_.batch * shape_.query_length * shape_.o_stride, stream);
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
  const double first = static_cast<double>(shape_.query_position);
  const double end = first + static_cast<double>(shape_.query_length);
  const double window = shape_.window > 0 ? static_cast<double>(shape_.window) : end;
  // Queries before `full` see all keys up to theirs, the others `window` of them.
  const double full = std::clamp(window, first, end);
  const double pairs = (full * full - first * first) / 2 + (end - full) * window;
  return 4.0 * static_cast<double>(shape_.batch * shape_.heads * shape_.head_dim) * pairs;
}

}  // namespace shardplan
