// What is launched before the first step (first_launches.h says why): operations, collectives,
// sums.
#include <algorithm>

#include "kernels/pointwise/cuda_check.h"
#include "validator/cuda/operations.h"
#include "validator/cuda/rank.h"
#include "validator/program/first_launches.h"

namespace shardplan {

// So that ids, offsets and places are valid whatever else has been there.
void CudaRank::zero_inputs(const Operation& op) const {
  for (const View& view : op.in) {
    const DeviceView at = resolve(view);
    if (at.present()) {
      fill_zero(at, streams_[static_cast<std::size_t>(op.stream)]);
    }
  }
}

void CudaRank::load_kernels() {
  const OperationLauncher launcher(*this, 1, 0);
  for (const std::int64_t i : first_launches(program_)) {
    const Operation& op = program_.operations[static_cast<std::size_t>(i)];
    zero_inputs(op);
    launcher.launch(i);
    CUDA_CHECK(cudaStreamSynchronize(streams_[static_cast<std::size_t>(op.stream)]));
  }
}

void CudaRank::launch_first_calls(std::size_t use) {
  const OperationLauncher launcher(*this, 1, 0);
  for (const std::int64_t i : first_calls(program_, uses_.at(use))) {
    zero_inputs(program_.operations[static_cast<std::size_t>(i)]);
    launcher.launch(i);
  }
}

void CudaRank::launch_first_exchanges() {
  const OperationLauncher launcher(*this, 1, 0);
  for (const CommunicatorUse& use : uses_) {
    const auto exchange = std::ranges::find_if(use.operations, [&](std::int64_t i) {
      return program_.operations[static_cast<std::size_t>(i)].kind == OpKind::kExchange;
    });
    if (exchange != use.operations.end() && peers_of(*exchange) == nullptr &&
        communicator_of(*exchange) != nullptr) {
      zero_inputs(program_.operations[static_cast<std::size_t>(*exchange)]);
      launcher.launch(*exchange);
    }
  }
}

// Copies of other members are added up.
void CudaRank::load_sums(const CommunicatorUse& use) const {
  for (const std::int64_t i : use.operations) {
    const Operation& op = program_.operations[static_cast<std::size_t>(i)];
    const bool sums = op.kind == OpKind::kReduceScatter || op.kind == OpKind::kAllReduce;
    if (sums && can_copy(op, use)) {
      CudaPeers::load_sum(resolve(op.out[0]), streams_[static_cast<std::size_t>(op.stream)]);
    }
  }
}

}  // namespace shardplan
