#include "kernels/attention/call.h"

#include <cuda_bf16.h>

#include <stdexcept>

#include "kernels/attention/cudnn.h"

namespace shardplan {
namespace {

using Bf16 = __nv_bfloat16;

}  // namespace

CudnnMask mask_of(const AttentionShape& shape) {
  if (shape.query_position >= shape.key_length - 1 && window_of(shape) == 0) {
    return CudnnMask::kNone;
  }
  if (shape.query_position == shape.key_length - shape.query_length) {
    return shape.query_position == 0 ? CudnnMask::kTopLeft : CudnnMask::kBottomRight;
  }
  return CudnnMask::kOther;
}

std::int64_t window_of(const AttentionShape& shape) {
  // The last query stands at query_position + query_length - 1 and sees the key at 0.
  const bool hides = shape.window > 0 && shape.window < shape.query_position + shape.query_length;
  return hides ? shape.window : 0;
}

AttentionLibrary::AttentionLibrary(AttentionKernels kernels, std::string why_own)
    : why_own_(std::move(why_own)) {
  if (kernels == AttentionKernels::kFastest) {
    cudnn_ = open_cudnn(why_own_);
  }
  description_ = cudnn_ ? "cuDNN " + cudnn_->version() : "own kernels: " + why_own_;
}

AttentionLibrary::~AttentionLibrary() = default;

namespace {

// The graph that `ask` gets from cuDNN for bf16, or why there is none.
template <class Ask>
CudnnAnswer ask_cudnn(CudnnAttention* cudnn, const std::string& why_own, AttentionTypes types,
                      const AttentionShape& shape, const Ask& ask) {
  if (cudnn == nullptr) {
    return {.graph = nullptr, .why_not = why_own};
  }
  if (types != AttentionTypes::kBf16) {
    return {.graph = nullptr, .why_not = "cuDNN's attention is bf16 in and out"};
  }
  if (mask_of(shape) == CudnnMask::kOther) {
    return {.graph = nullptr,
            .why_not =
                "cuDNN has no mask for queries in the midst of the keys, or behind them "
                "with a window"};
  }
  return ask(*cudnn);
}

}  // namespace

AttentionForward::AttentionForward(const AttentionLibrary& library, AttentionTypes types,
                                   const AttentionShape& shape)
    : types_(types), shape_(shape) {
  CudnnAnswer answer = ask_cudnn(library.cudnn_.get(), library.why_own_, types, shape,
                                 [&](CudnnAttention& cudnn) { return cudnn.forward(shape); });
  graph_ = std::move(answer.graph);
  own_because_ = std::move(answer.why_not);
  workspace_bytes_ = graph_ ? graph_->workspace_bytes() : 0;
}

void AttentionForward::run(void* o, float* lse, const void* q, const void* k, const void* v,
                           void* workspace, cudaStream_t stream) const {
  if (graph_) {
    graph_->forward(o, lse, q, k, v, workspace, stream);
  } else if (types_ == AttentionTypes::kFloat) {
    attention_forward(static_cast<float*>(o), lse, static_cast<const float*>(q),
                      static_cast<const float*>(k), static_cast<const float*>(v), shape_, stream);
  } else {
    attention_forward(static_cast<Bf16*>(o), lse, static_cast<const Bf16*>(q),
                      static_cast<const Bf16*>(k), static_cast<const Bf16*>(v), shape_, stream);
  }
}

AttentionBackward::AttentionBackward(const AttentionLibrary& library, AttentionTypes types,
                                     const AttentionShape& shape,
                                     const AttentionGradientShape& gradients, AttentionOrder order)
    : types_(types), shape_(shape), gradients_(gradients) {
  if (gradients.dq_sum != GradientSum::kOverwrite) {
    throw std::logic_error("AttentionBackward: found dq_sum kAccumulate, expected kOverwrite");
  }
  const bool repeatable = order == AttentionOrder::kRepeatable;
  CudnnAnswer answer =
      ask_cudnn(library.cudnn_.get(), library.why_own_, types, shape,
                [&](CudnnAttention& cudnn) -> CudnnAnswer {
                  const bool adds = gradients.dkv_sum == GradientSum::kAccumulate;
                  if ((repeatable || adds) && runs_on_warpgroups(shape)) {
                    return {.graph = nullptr,
                            .why_not = adds ? "gradients of keys are added to sums"
                                            : "repeatable without cuDNN's workspace"};
                  }
                  return cudnn.backward(shape, gradients, repeatable);
                });
  graph_ = std::move(answer.graph);
  own_because_ = std::move(answer.why_not);
  const std::int64_t delta_bytes = shape.batch * shape.query_length * shape.heads * 4;
  workspace_bytes_ = graph_ ? graph_->workspace_bytes() : delta_bytes;
}

template <class T, class G>
void AttentionBackward::run_own(void* dq, void* dk, void* dv, const void* dout, const void* q,
                                const void* k, const void* v, const void* o, const float* lse,
                                void* workspace, cudaStream_t stream) const {
  attention_backward(static_cast<G*>(dq), static_cast<G*>(dk), static_cast<G*>(dv),
                     static_cast<float*>(workspace), static_cast<const T*>(dout),
                     static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                     static_cast<const T*>(o), lse, shape_, gradients_, stream);
}

void AttentionBackward::run(void* dq, void* dk, void* dv, const void* dout, const void* q,
                            const void* k, const void* v, const void* o, const float* lse,
                            void* workspace, cudaStream_t stream) const {
  if (graph_) {
    graph_->backward(dq, dk, dv, dout, q, k, v, o, lse, workspace, stream);
    return;
  }
  switch (types_) {
    case AttentionTypes::kFloat:
      return run_own<float, float>(dq, dk, dv, dout, q, k, v, o, lse, workspace, stream);
    case AttentionTypes::kBf16:
      return run_own<Bf16, Bf16>(dq, dk, dv, dout, q, k, v, o, lse, workspace, stream);
    case AttentionTypes::kBf16FloatGradients:
      return run_own<Bf16, float>(dq, dk, dv, dout, q, k, v, o, lse, workspace, stream);
  }
}

}  // namespace shardplan
