// Attention on a GPU: cuDNN's where it takes the shape and its workspace fits what the program has
// for it, our own kernels everywhere else. Forward calls and what a backward call needs beyond its
// own workspace use the scratch of kernels.
#include "kernels/attention/lse_merge.h"
#include "validator/cuda/operations.h"

namespace shardplan {
namespace {

AttentionShape shape_of(const OpAttributes& a, const DeviceView& q, const DeviceView& k,
                        const DeviceView& o) {
  return {.batch = a.batch,
          .query_length = q.rows / a.batch,
          .key_length = k.rows / a.batch,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .query_position = a.query_position - a.key_position,
          .window = a.window,
          .q_stride = q.stride,
          .kv_stride = k.stride,
          .o_stride = o.stride};
}

AttentionTypes types_of(DType dtype, DType gradient) {
  if (dtype == DType::kFp32) {
    return AttentionTypes::kFloat;
  }
  return gradient == DType::kFp32 ? AttentionTypes::kBf16FloatGradients : AttentionTypes::kBf16;
}

std::int64_t bytes_in(const DeviceView& view) {
  return view.present() ? view.elements() * bytes_of(view.dtype) : 0;
}

}  // namespace

void CudaRank::prepare_attention(AttentionKernels kernels) {
  attention_library_ = std::make_unique<AttentionLibrary>(kernels);
  own_attention_ = std::make_unique<AttentionLibrary>(
      AttentionKernels::kOwn, "the program has less workspace than cuDNN asks for");
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    const Operation& op = program_.operations[i];
    const auto index = static_cast<std::int64_t>(i);
    if (op.kind == OpKind::kAttentionForward) {
      prepare_forward(index, op);
    } else if (op.kind == OpKind::kAttentionBackward) {
      prepare_backward(index, op);
    }
  }
}

void CudaRank::prepare_forward(std::int64_t index, const Operation& op) {
  const DeviceView q = resolve(op.in[0]);
  const AttentionShape shape = shape_of(op.attributes, q, resolve(op.in[1]), resolve(op.out[0]));
  const AttentionTypes types = types_of(q.dtype, q.dtype);
  auto call = std::make_unique<AttentionForward>(*attention_library_, types, shape);
  if (call->workspace_bytes() > bytes_in(scratch_)) {
    call = std::make_unique<AttentionForward>(*own_attention_, types, shape);
  }
  attention_forward_[index] = std::move(call);
}

void CudaRank::prepare_backward(std::int64_t index, const Operation& op) {
  const DeviceView dout = resolve(op.in[0]);
  const DeviceView q = resolve(op.in[1]);
  const DeviceView dkv = resolve(op.out[1]);
  const AttentionShape shape = shape_of(op.attributes, q, resolve(op.in[2]), dout);
  const AttentionTypes types = types_of(q.dtype, dkv.dtype);
  const AttentionGradientShape gradients{
      .dq_stride = resolve(op.out[0]).stride,
      .dkv_stride = dkv.stride,
      .dkv_sum = op.attributes.accumulate ? GradientSum::kAccumulate : GradientSum::kOverwrite};
  if (dout.stride != resolve(op.in[4]).stride || resolve(op.out[0]).dtype != dkv.dtype) {
    throw std::logic_error(place_of(program_, index) +
                           ": outputs and gradients of different strides or types");
  }
  const std::int64_t room = std::max(bytes_in(resolve(op.out[3])), bytes_in(scratch_));
  const AttentionOrder order =
      op.attributes.repeatable ? AttentionOrder::kRepeatable : AttentionOrder::kAny;
  auto call =
      std::make_unique<AttentionBackward>(*attention_library_, types, shape, gradients, order);
  if (call->workspace_bytes() > room) {
    call = std::make_unique<AttentionBackward>(*own_attention_, types, shape, gradients, order);
  }
  attention_backward_[index] = std::move(call);
}

std::string CudaRank::attention_used() const {
  std::int64_t own = 0;
  std::string why;
  const auto count = [&](const auto& calls) {
    for (const auto& [operation, call] : calls) {
      if (!call->own_because().empty()) {
        ++own;
        why = call->own_because();
      }
    }
  };
  count(attention_forward_);
  count(attention_backward_);
  const auto calls =
      static_cast<std::int64_t>(attention_forward_.size() + attention_backward_.size());
  if (own == 0) {
    return calls == 0 ? "" : attention_library_->description();
  }
  if (own == calls) {
    return "own kernels: " + why;
  }
  return attention_library_->description() + "; own kernels in " + std::to_string(own) + " of " +
         std::to_string(calls) + " calls: " + why;
}

bool OperationLauncher::launch_attention(const Call& call) const {
  const std::vector<DeviceView>& in = call.in;
  const std::vector<DeviceView>& out = call.out;
  switch (call.op.kind) {
    case OpKind::kAttentionForward:
      rank_.attention_forward_.at(call.index)
          ->run(out[0].data, out[1].as<float>(), in[0].data, in[1].data, in[2].data, scratch(),
                call.stream);
      return true;
    case OpKind::kAttentionBackward: {
      const AttentionBackward& backward = *rank_.attention_backward_.at(call.index);
      void* workspace = backward.workspace_bytes() <= bytes_in(out[3]) ? out[3].data : scratch();
      backward.run(out[0].data, out[1].data, out[2].data, in[0].data, in[1].data, in[2].data,
                   in[3].data, in[4].data, in[5].as<float>(), workspace, call.stream);
      return true;
    }
    case OpKind::kLseMerge:
      if (out[0].dtype != DType::kFp32 || !out[0].contiguous() || !in[0].contiguous()) {
        refuse(call, "a sum that is not fp32, or strided views");
      }
      with_device_type(in[0].dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        const std::int64_t heads = out[1].cols;
        lse_merge(out[0].as<float>(), out[1].as<float>(), in[0].as<T>(), in[1].as<float>(),
                  out[0].rows, heads, out[0].cols / heads, call.stream);
      });
      return true;
    default: return false;
  }
}

}  // namespace shardplan
