#include "estimator/ledger/fsdp_tensors.h"

namespace shardplan {

FsdpTensors::FsdpTensors(TimelineWriter& writer, const FsdpBuffers& buffers)
    : writer_(writer),
      buffers_(buffers),
      parameters_(buffers.buckets.size(), 0),
      gradients_(buffers.buckets.size(), 0) {}

void FsdpTensors::enter_forward(std::size_t unit) {
  if (!buffers_.empty()) {
    enter(buffers_.units[unit].gathered_forward, {}, 0);
  }
}

void FsdpTensors::enter_replay(std::size_t unit) {
  if (!buffers_.empty()) {
    const FsdpUnit& of = buffers_.units[unit];
    enter(of.gathered_replay, of.gradients_replay, of.held_bytes);
  }
}

void FsdpTensors::enter_backward(std::size_t unit) {
  if (!buffers_.empty()) {
    const FsdpUnit& of = buffers_.units[unit];
    enter(of.gathered_backward, of.gradients_backward, of.held_bytes);
  }
}

void FsdpTensors::leave() {
  enter({}, {}, 0);
}

void FsdpTensors::enter(BucketRange gathered, BucketRange gradients, std::int64_t held_bytes) {
  const auto is_in = [](BucketRange range, std::size_t i) {
    return range.first <= i && i < range.last;
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_in(gathered, i)) {
      writer_.free(parameters_[i]);
    }
    if (!is_in(gradients, i)) {
      writer_.free(gradients_[i]);
    }
  }
  if (held_bytes == 0) {
    writer_.free(held_);
  }
  const auto make = [this](std::int64_t& id, std::int64_t bytes, AllocationStream stream) {
    if (id == 0 && bytes > 0) {
      id = writer_.allocate(bytes, stream);
    }
  };
  for (std::size_t i = gathered.first; i < gathered.last; ++i) {
    make(parameters_[i], buffers_.buckets[i].parameter_bytes, AllocationStream::kGather);
  }
  for (std::size_t i = gradients.first; i < gradients.last; ++i) {
    make(gradients_[i], buffers_.buckets[i].gradient_bytes, AllocationStream::kCompute);
  }
  make(held_, held_bytes, AllocationStream::kCompute);
}

}  // namespace shardplan
