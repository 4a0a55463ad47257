// Operations of experts on a GPU. Rows go straight into the memory of the members that hold the
// experts; a sum of nothing over the group's communicator before and after keeps them apart:
// before, every member has come so far that its buffer is free, or holds what is to be read; after,
// all have written, or read.
#include "kernels/experts/exchange.h"
#include "kernels/experts/grouped_gemm.h"
#include "kernels/experts/grouped_weight_gradient.h"
#include "kernels/experts/router.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/swiglu.h"
#include "kernels/pointwise/cuda_check.h"
#include "validator/cuda/operations.h"

namespace shardplan {
namespace {

RouterShape router_shape(const OpAttributes& a, const DeviceView& probabilities,
                         const DeviceView& choices, const DeviceView& counts) {
  return {.rows = probabilities.rows,
          .experts = probabilities.cols,
          .num_choices = choices.cols,
          .first_row = a.first_row,
          .sequence_rows = a.sequence_rows,
          .sequences = counts.rows,
          .chooses_in_turn = a.chooses_in_turn,
          .first_position = a.query_position,
          .position_gap = a.position_gap};
}

const std::int32_t* last_offset(const DeviceView& offsets) {
  return offsets.as<std::int32_t>() + offsets.cols - 1;
}

}  // namespace

void OperationLauncher::place_rows(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  const DeviceView& counts = call.in[1];
  const std::int64_t members = div_exact(counts.cols, a.experts) * a.copies;
  expert_rows(call.out[0].as<std::int32_t>(), call.out[1].as<std::int32_t>(),
              call.out[2].as<float>(), call.in[0].as<std::int32_t>(), counts.as<float>(),
              {.choices = call.in[0].elements(),
               .experts = counts.cols,
               .run_experts = a.experts,
               .copies = a.copies,
               .sequences = div_exact(counts.rows, members),
               .member = a.member,
               .capacity = a.capacity},
              a.accumulate ? RequiredRows::kMaximum : RequiredRows::kOverwrite, call.stream);
}

void OperationLauncher::weight_gradients(const Call& call) const {
  const DeviceView& out = call.out[0];
  const std::int64_t experts = call.in[2].cols - 1;
  const GroupedWeightShape shape{
      .experts = experts, .rows = div_exact(out.rows, experts), .columns = out.cols};
  with_gradient_type(call.in[0].dtype, out.dtype, [&](auto type, auto gradient) {
    using T = typename decltype(type)::type;
    using G = typename decltype(gradient)::type;
    grouped_weight_gradient(
        out.as<G>(), call.in[0].as<T>(), call.in[1].as<T>(), call.in[2].as<std::int32_t>(), shape,
        call.op.attributes.accumulate ? GradientSum::kAccumulate : GradientSum::kOverwrite,
        call.stream);
  });
}

bool OperationLauncher::launch_experts(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  const std::vector<DeviceView>& in = call.in;
  const DeviceView& out = call.out[0];
  switch (call.op.kind) {
    case OpKind::kRouterForward:
      router_forward(out.as<float>(), call.out[1].as<std::int32_t>(), call.out[2].as<float>(),
                     call.out[3].as<float>(), in[0].as<float>(),
                     router_shape(a, out, call.out[1], call.out[3]), call.stream);
      return true;
    case OpKind::kRouterBackward:
      if (!a.accumulate) {
        CUDA_CHECK(cudaMemsetAsync(call.out[1].data, 0, 4, call.stream));
      }
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        router_backward(out.as<T>(), call.out[1].as<float>(), static_cast<double*>(scratch()),
                        in[0].as<float>(), in[1].as<std::int32_t>(), in[2].as<float>(),
                        in[3].as<float>(), a.value, router_shape(a, in[0], in[1], in[3]),
                        call.stream);
      });
      return true;
    case OpKind::kExpertRows: place_rows(call); return true;
    case OpKind::kGroupedGemm:
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        grouped_gemm(out.as<T>(), in[0].as<T>(), in[1].as<T>(), in[2].as<std::int32_t>(),
                     {.experts = in[2].cols - 1,
                      .capacity = out.rows,
                      .columns = out.cols,
                      .inner = in[0].cols,
                      .b_layout = a.transpose_b ? GemmLayout::kTransposed : GemmLayout::kPlain},
                     call.stream);
      });
      return true;
    case OpKind::kGroupedWeightGradient: weight_gradients(call); return true;
    case OpKind::kExpertSwigluForward:
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        expert_swiglu_forward(out.as<T>(), in[0].as<T>(), in[1].as<float>(), last_offset(in[2]),
                              out.rows, out.cols, call.stream);
      });
      return true;
    case OpKind::kExpertSwigluBackward:
      with_device_type(out.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        expert_swiglu_backward(out.as<T>(), call.out[1].as<float>(), call.out[2].as<T>(),
                               in[0].as<T>(), in[1].as<T>(), in[2].as<float>(), last_offset(in[3]),
                               in[0].rows, in[0].cols, call.stream);
      });
      return true;
    default: return false;
  }
}

// Where every member of the group has what this one has at `view`; a simulated rank has its own.
template <class T>
MemberPointers<T> OperationLauncher::of_members(const Call& call, const DeviceView& view) const {
  MemberPointers<T> pointers;
  if (!view.present()) {
    return pointers;
  }
  const std::size_t members =
      rank_.program_.groups[static_cast<std::size_t>(call.op.group)].ranks.size();
  if (members > std::size(pointers.at)) {
    refuse(call, "more ranks share experts than pointers to them fit");
  }
  for (std::size_t member = 0; member < members; ++member) {
    pointers.at[member] = static_cast<T*>(rank_.at_member(call.op.group, member, view.data));
  }
  return pointers;
}

void OperationLauncher::exchange_rows(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  const std::vector<DeviceView>& in = call.in;
  const std::vector<DeviceView>& out = call.out;
  const bool dispatches = call.op.kind == OpKind::kExpertDispatch;
  const DeviceView& tokens = dispatches ? in[0] : out[0];
  const DeviceView& received = dispatches ? out[0] : in[0];
  const ExpertExchange exchange{.rows = tokens.rows,
                                .num_choices = in[1].cols,
                                .width = tokens.cols,
                                .run_experts = a.experts,
                                .copies = a.copies,
                                .capacity = received.rows};
  with_device_type(tokens.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (dispatches) {
      expert_dispatch(of_members<T>(call, out[0]), of_members<float>(call, out[1]), in[0].as<T>(),
                      in[1].as<std::int32_t>(), in[2].as<std::int32_t>(), in[3].as<float>(),
                      exchange, call.stream);
    } else {
      expert_combine(out[0].as<T>(), out[1].as<float>(), of_members<const T>(call, in[0]),
                     of_members<const float>(call, in[3]), in[1].as<std::int32_t>(),
                     in[2].as<std::int32_t>(), exchange,
                     a.accumulate ? CombineSum::kAccumulate : CombineSum::kOverwrite, call.stream);
    }
  });
}

bool OperationLauncher::launch_exchange(const Call& call) const {
  if (call.op.kind != OpKind::kExpertDispatch && call.op.kind != OpKind::kExpertCombine) {
    return false;
  }
  CudaCommunicator* const group = rank_.communicator_of(call.index);
  const auto meet = [&] {
    if (group != nullptr) {
      group->all_reduce(rank_.barrier_, rank_.barrier_, call.stream);
    }
  };
  meet();
  exchange_rows(call);
  meet();
  return true;
}

}  // namespace shardplan
