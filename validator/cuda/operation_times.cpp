#include "validator/cuda/operation_times.h"

#include <algorithm>

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {

OperationEvents::OperationEvents(std::int64_t num_operations) {
  for (std::int64_t i = 0; i < std::min(num_operations, kMostOperationTimes); ++i) {
    CUDA_CHECK(cudaEventCreate(&begins_.emplace_back()));
    CUDA_CHECK(cudaEventCreate(&ends_.emplace_back()));
  }
  CUDA_CHECK(cudaEventCreate(&origin_));
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

OperationEvents::~OperationEvents() {
  for (const auto* events : {&begins_, &ends_}) {
    for (cudaEvent_t event : *events) { cudaEventDestroy(event); }
  }
  cudaEventDestroy(origin_);
  cudaStreamDestroy(stream_);
}

void OperationEvents::mark_origin() {
  const double before_s = clock_s();
  CUDA_CHECK(cudaEventRecord(origin_, stream_));
  CUDA_CHECK(cudaEventSynchronize(origin_));
  origin_s_ = clock_s();
  precision_s_ = origin_s_ - before_s;
}

void OperationEvents::record(const std::vector<cudaEvent_t>& events, std::int64_t operation,
                             cudaStream_t stream) {
  if (operation < std::ssize(events)) {
    CUDA_CHECK(cudaEventRecord(events[static_cast<std::size_t>(operation)], stream));
  }
}

void OperationEvents::begin(std::int64_t operation, cudaStream_t stream) {
  record(begins_, operation, stream);
}

void OperationEvents::end(std::int64_t operation, cudaStream_t stream) {
  record(ends_, operation, stream);
}

OperationTimes OperationEvents::times() const {
  const auto since_origin = [this](const std::vector<cudaEvent_t>& events) {
    std::vector<double> seconds;
    for (const cudaEvent_t event : events) {
      float milliseconds = 0;
      CUDA_CHECK(cudaEventElapsedTime(&milliseconds, origin_, event));
      seconds.push_back(static_cast<double>(milliseconds) / 1e3);
    }
    return seconds;
  };
  return {.host = host_of_clock(),
          .origin_s = origin_s_,
          .precision_s = precision_s_,
          .begins_s = since_origin(begins_),
          .ends_s = since_origin(ends_)};
}

}  // namespace shardplan
