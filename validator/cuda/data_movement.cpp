// What moves data on a GPU: copies, sums of parts, conversions, and collectives.
#include "validator/cuda/operations.h"

#include "kernels/pointwise/convert.h"
#include "kernels/pointwise/copy_matrices.h"
#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/sum_parts.h"

namespace shardplan {
namespace {

using Bf16 = __nv_bfloat16;

void copy_view(const DeviceView& to, const DeviceView& from, cudaStream_t stream) {
  if (from.dtype == to.dtype) {
    const auto bytes = [&](std::int64_t elements) {
      return static_cast<std::size_t>(elements * bytes_of(to.dtype));
    };
    CUDA_CHECK(cudaMemcpy2DAsync(to.data, bytes(to.stride), from.data, bytes(from.stride),
                                 bytes(to.cols), static_cast<std::size_t>(to.rows),
                                 cudaMemcpyDeviceToDevice, stream));
    return;
  }
  const bool at_once = from.contiguous() && to.contiguous();
  const auto run = [&](auto* target, const auto* source) {
    if (at_once) {
      convert(target, source, to.elements(), stream);
    } else {
      convert_rows(target, to.stride, source, from.stride, to.rows, to.cols, stream);
    }
  };
  if (to.dtype == DType::kFp32) {
    run(to.as<float>(), from.as<const Bf16>());
  } else {
    run(to.as<Bf16>(), from.as<const float>());
  }
}

// Of views of one type.
MatrixCopy matrix_copy(const DeviceView& to, const DeviceView& from) {
  const std::int64_t size = bytes_of(to.dtype);
  return {.to = to.data,
          .from = from.data,
          .rows = to.rows,
          .row_bytes = to.cols * size,
          .to_stride_bytes = to.stride * size,
          .from_stride_bytes = from.stride * size};
}

}  // namespace

// All that can go at once does: one kernel, faster than the driver's copies within a GPU are.
void OperationLauncher::copy(const Call& call) const {
  std::vector<MatrixCopy> copies;
  for (std::size_t i = 0; i < call.out.size(); ++i) {
    const DeviceView& from = call.in[i];
    const DeviceView& to = call.out[i];
    const MatrixCopy bytes = matrix_copy(to, from);
    if (from.dtype == to.dtype && is_aligned(bytes)) {
      copies.push_back(bytes);
    } else {
      copy_view(to, from, call.stream);
    }
  }
  copy_matrices(copies, call.stream);
}

void OperationLauncher::add_parts(const Call& call) const {
  const DeviceView& parts = call.in[0];
  const DeviceView& sum = call.out[0];
  const std::int64_t rows = sum.contiguous() ? 1 : sum.rows;
  const std::int64_t width = sum.elements() / rows;
  if (width % 8 != 0 || (rows > 1 && sum.stride % 8 != 0)) {
    refuse(call, "parts whose rows are no multiple of 8 elements, or lie no multiple of 8 apart");
  }
  with_device_type(sum.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    sum_parts(sum.as<T>(), parts.as<T>(), call.in[1].as<T>(), parts.elements() / sum.elements(),
              call.op.attributes.member, {.rows = rows, .width = width, .stride = sum.stride},
              call.stream);
  });
}

bool OperationLauncher::launch_movement(const Call& call) const {
  const DeviceView& out = call.out[0];
  switch (call.op.kind) {
    case OpKind::kFill:
      if (call.op.attributes.value == 0) {
        fill_zero(out, call.stream);
      } else if (out.contiguous()) {
        with_device_type(out.dtype, [&](auto type) {
          using T = typename decltype(type)::type;
          fill(out.as<T>(), as_float(call.op.attributes.value), out.elements(), call.stream);
        });
      } else {
        refuse(call, "a strided view filled with another value than 0");
      }
      return true;
    case OpKind::kCopy: copy(call); return true;
    case OpKind::kAdd:
      if (out.dtype == DType::kFp32 && call.in[1].dtype == DType::kBf16) {
        add(out.as<float>(), call.in[0].as<float>(), call.in[1].as<Bf16>(), out.elements(),
            call.stream);
        return true;
      }
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        add(out.as<T>(), call.in[0].as<T>(), call.in[1].as<T>(), out.elements(), call.stream);
      });
      return true;
    case OpKind::kSumParts: add_parts(call); return true;
    default: return false;
  }
}

bool OperationLauncher::copy_among(CudaPeers& peers, const Call& call) const {
  switch (call.op.kind) {
    case OpKind::kAllGather: peers.all_gather(call.in[0], call.out, call.stream); return true;
    case OpKind::kReduceScatter:
      peers.reduce_scatter(call.in, call.out[0], call.stream);
      return true;
    case OpKind::kExchange: peers.exchange(call.in, call.out, call.stream); return true;
    case OpKind::kAllReduce: peers.all_reduce(call.in[0], call.out[0], call.stream); return true;
    case OpKind::kRingShift: peers.ring_shift(call.in[0], call.out[0], call.stream); return true;
    case OpKind::kSend:
      peers.send(call.in[0], rank_.place_in_use(call.index), call.stream);
      return true;
    case OpKind::kReceive: peers.receive(call.stream); return true;
    default: return false;
  }
}

// Without a communicator (a rank that is simulated, a group of one rank, absent members) a sum is
// what this rank gives to it, and nothing else moves: numbers stay of their usual size. Where parts
// by member would arrive, zeros do: gathered keys lie there.
void OperationLauncher::keep_own_share(const Call& call) const {
  const auto copy = [&](const DeviceView& to, const DeviceView& from) {
    if (to.data != from.data) {
      CUDA_CHECK(cudaMemcpyAsync(to.data, from.data,
                                 static_cast<std::size_t>(to.elements() * bytes_of(to.dtype)),
                                 cudaMemcpyDeviceToDevice, call.stream));
    }
  };
  if (call.op.stream == Stream::kExperts) {  // counts become places in memory
    fill_zero(call.out[0], call.stream);
  } else if (call.op.kind == OpKind::kAllReduce) {
    copy(call.out[0], call.in[0]);
  } else if (call.op.kind == OpKind::kExchange && call.out.size() > 1) {
    for (const View& view : written_views(rank_.program_, call.op)) {
      fill_zero(rank_.resolve(view), call.stream);
    }
  } else if (call.op.kind == OpKind::kReduceScatter) {
    const DeviceView& whole = call.in.front();
    const std::ptrdiff_t place =
        static_cast<char*>(call.out[0].data) - static_cast<char*>(whole.data);
    const bool is_in_place =
        call.in.size() > 1 || (place >= 0 && place < whole.elements() * bytes_of(whole.dtype));
    if (!is_in_place) {
      copy(call.out[0], part_of(whole, 0, whole.elements() / call.out[0].elements()));
    }
  }
}

bool OperationLauncher::launch_collective(const Call& call) const {
  if (!is_communication(call.op.kind)) {
    return false;
  }
  if (CudaPeers* const peers = rank_.peers_of(call.index)) {
    return copy_among(*peers, call);
  }
  CudaCommunicator* const group = rank_.communicator_of(call.index);
  if (group == nullptr) {
    keep_own_share(call);
    return true;
  }
  switch (call.op.kind) {
    case OpKind::kAllGather: group->all_gather(call.in[0], call.out, call.stream); return true;
    case OpKind::kReduceScatter:
      group->reduce_scatter(call.in, call.out[0], call.stream);
      return true;
    case OpKind::kExchange: group->exchange(call.in, call.out, call.stream); return true;
    case OpKind::kAllReduce: group->all_reduce(call.in[0], call.out[0], call.stream); return true;
    case OpKind::kRingShift: group->ring_shift(call.in[0], call.out[0], call.stream); return true;
    // A message's communicator has two members: who sends, who receives.
    case OpKind::kSend: group->send(call.in[0], 1, call.stream); return true;
    case OpKind::kReceive: group->receive(call.out[0], 0, call.stream); return true;
    default: return false;
  }
}

}  // namespace shardplan
