#include "validator/cuda/operations.h"

#include <algorithm>

#include "kernels/pointwise/adamw.h"
#include "kernels/pointwise/cross_entropy.h"
#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/embedding.h"
#include "kernels/pointwise/rms_norm.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/squared_norm.h"
#include "kernels/pointwise/swiglu.h"

namespace shardplan {
namespace {

VocabularyShard shard_of(const OpAttributes& a, const DeviceView& logits) {
  return {.rows = logits.rows,
          .width = logits.cols,
          .num_valid = std::clamp<std::int64_t>(a.vocab - a.first_row, 0, logits.cols),
          .first_column = a.first_row};
}

}  // namespace

float as_float(double value) {
  return static_cast<float>(value);
}

void fill_zero(const DeviceView& view, cudaStream_t stream) {
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements * bytes_of(view.dtype));
  };
  if (view.contiguous()) {
    CUDA_CHECK(cudaMemsetAsync(view.data, 0, bytes(view.elements()), stream));
  } else {
    CUDA_CHECK(cudaMemset2DAsync(view.data, bytes(view.stride), 0, bytes(view.cols),
                                 static_cast<std::size_t>(view.rows), stream));
  }
}

void OperationLauncher::refuse(const Call& call, const char* why) const {
  throw std::logic_error(place_of(rank_.program_, call.index) + ": no kernel: " + why);
}

void OperationLauncher::launch(std::int64_t operation) const {
  const Operation& op = rank_.program_.operations[static_cast<std::size_t>(operation)];
  Call call{.op = op,
            .index = operation,
            .in = {},
            .out = {},
            .stream = rank_.streams_[static_cast<std::size_t>(op.stream)]};
  for (const View& view : op.in) { call.in.push_back(rank_.resolve(view)); }
  for (const View& view : op.out) { call.out.push_back(rank_.resolve(view)); }
  const bool done = launch_movement(call) || launch_block(call) || launch_attention(call) ||
                    launch_loss(call) || launch_experts(call) || launch_exchange(call) ||
                    launch_collective(call) || launch_update(call);
  if (!done) {
    refuse(call, "this kind of operation");
  }
}

void OperationLauncher::rotate(const Call& call) const {
  const DeviceView& out = call.out[0];
  if (call.in[0].data != out.data) {
    refuse(call, "a rotation that is not in place");
  }
  const OpAttributes& a = call.op.attributes;
  const std::int64_t length = out.rows / a.batch;
  with_device_type(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    rope(out.as<T>(), rank_.rotary_table_.as<float2>(),
         {.rows = out.rows,
          .length = length,
          .first_start = a.query_position,
          .second_start = a.query_position + length / 2 + a.position_gap},
         out.stride, a.heads, a.head_dim,
         a.inverse ? RopeDirection::kInverse : RopeDirection::kForward, call.stream);
  });
}

void OperationLauncher::norm_backward(const Call& call) const {
  const DeviceView& dx = call.out[0];
  const DeviceView& dweight = call.out[1];
  const GradientSum sum =
      call.op.attributes.accumulate ? GradientSum::kAccumulate : GradientSum::kOverwrite;
  with_gradient_type(dx.dtype, dweight.dtype, [&](auto type, auto gradient) {
    using T = typename decltype(type)::type;
    using G = typename decltype(gradient)::type;
    rms_norm_backward(dx.as<T>(), dweight.as<G>(), static_cast<float*>(scratch()),
                      call.in[0].as<T>(), call.in[1].as<T>(), call.in[2].as<float>(),
                      call.in[3].as<T>(), call.in[4].as<T>(), dx.rows, dx.cols, call.stream, sum);
  });
}

void OperationLauncher::embedding_gradient(const Call& call) const {
  const DeviceView& table = call.out[0];
  const DeviceView& gradient = call.in[1];
  with_gradient_type(gradient.dtype, table.dtype, [&](auto type, auto of_table) {
    using T = typename decltype(type)::type;
    using G = typename decltype(of_table)::type;
    embedding_backward(table.as<G>(), static_cast<std::int32_t*>(scratch()), gradient.as<T>(),
                       call.in[0].as<std::int32_t>(), gradient.rows, gradient.cols,
                       call.op.attributes.first_row, table.rows, call.stream);
  });
}

bool OperationLauncher::launch_block(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  const std::vector<DeviceView>& in = call.in;
  const DeviceView& out = call.out[0];
  switch (call.op.kind) {
    case OpKind::kEmbeddingForward:
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        embedding_forward(out.as<T>(), in[1].as<T>(), in[0].as<std::int32_t>(), out.rows, out.cols,
                          a.first_row, in[1].rows, call.stream);
      });
      return true;
    case OpKind::kEmbeddingBackward: embedding_gradient(call); return true;
    case OpKind::kRmsNormForward:
    case OpKind::kAddRmsNormForward:
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        float* rstd = call.out[1].as<float>();
        const float epsilon = as_float(a.epsilon);
        if (call.op.kind == OpKind::kRmsNormForward) {
          rms_norm_forward(out.as<T>(), rstd, in[0].as<T>(), in[1].as<T>(), out.rows, out.cols,
                           epsilon, call.stream);
        } else {
          add_rms_norm_forward(out.as<T>(), rstd, call.out[2].as<T>(), in[0].as<T>(), in[2].as<T>(),
                               in[1].as<T>(), out.rows, out.cols, epsilon, call.stream);
        }
      });
      return true;
    case OpKind::kRmsNormBackward: norm_backward(call); return true;
    case OpKind::kGemm:
      if (a.fp8) {
        multiply_in_fp8(call);
        return true;
      }
      rank_.products_.at(call.index)
          ->run(out.data, in[0].data, in[1].data, rank_.product_workspace_.data, call.stream);
      return true;
    case OpKind::kRope: rotate(call); return true;
    case OpKind::kSwigluForward:
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        swiglu_forward(out.as<T>(), in[0].as<T>(), out.rows, out.cols, call.stream);
      });
      return true;
    case OpKind::kSwigluBackward:
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        swiglu_backward(out.as<T>(), call.out[1].as<T>(), in[0].as<T>(), in[1].as<T>(), in[0].rows,
                        in[0].cols, call.stream);
      });
      return true;
    default: return false;
  }
}

bool OperationLauncher::launch_loss(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  const std::vector<DeviceView>& in = call.in;
  const DeviceView& out = call.out[0];
  switch (call.op.kind) {
    case OpKind::kLossStatistics:
      with_device_type(in[0].dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        cross_entropy_statistics(out.as<RowStatistics>(), in[0].as<T>(), in[1].as<std::int32_t>(),
                                 shard_of(a, in[0]), call.stream);
      });
      return true;
    case OpKind::kLossCombine:
      if (!a.accumulate) {
        CUDA_CHECK(cudaMemsetAsync(call.out[1].data, 0, 4, call.stream));
      }
      cross_entropy_combine(out.as<RowStatistics>(), call.out[1].as<float>(),
                            in[0].as<RowStatistics>(), in[0].rows / out.rows, out.rows, a.value,
                            call.stream);
      return true;
    case OpKind::kLossGradient:
      if (in[0].data != out.data) {
        refuse(call, "a loss gradient that is not in place");
      }
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        cross_entropy_gradient(out.as<T>(), in[2].as<RowStatistics>(), in[1].as<std::int32_t>(),
                               shard_of(a, out), as_float(a.value), call.stream);
      });
      return true;
    default: return false;
  }
}

void OperationLauncher::update(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  const AdamWSettings settings{.rate = as_float(learning_rate_),
                               .beta1 = as_float(a.beta1),
                               .beta2 = as_float(a.beta2),
                               .epsilon = as_float(a.epsilon),
                               .decay = as_float(a.weight_decay),
                               .step = step_};
  const std::vector<DeviceView>& out = call.out;
  if (out[0].dtype != DType::kFp32) {
    refuse(call, "master weights that are not fp32");
  }
  with_device_type(out[3].dtype, [&](auto weight) {
    with_device_type(out[1].dtype, [&](auto moment) {
      with_device_type(call.in[0].dtype, [&](auto gradient) {
        using T = typename decltype(weight)::type;
        using M = typename decltype(moment)::type;
        using G = typename decltype(gradient)::type;
        adamw(out[3].as<T>(), out[0].as<float>(), out[1].as<M>(), out[2].as<M>(),
              call.in[0].as<G>(), call.in[1].as<float>(), out[0].elements(), settings, call.stream);
      });
    });
  });
}

bool OperationLauncher::launch_update(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  switch (call.op.kind) {
    case OpKind::kSquaredNorm:
      if (!a.accumulate) {
        CUDA_CHECK(cudaMemsetAsync(call.out[0].data, 0, 4, call.stream));
      }
      with_device_type(call.in[0].dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        add_squared_norm(call.out[0].as<float>(), static_cast<double*>(scratch()),
                         call.in[0].as<T>(), call.in[0].elements(), a.value, call.stream);
      });
      return true;
    case OpKind::kClipFactor:
      clip_factor(call.out[0].as<float>(), call.in[0].as<float>(), as_float(a.value), call.stream);
      return true;
    case OpKind::kAdamW: update(call); return true;
    default: return false;
  }
}

}  // namespace shardplan
