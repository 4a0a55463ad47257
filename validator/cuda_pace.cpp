#include "validator/cuda_pace.h"

#include "kernels/cuda_check.h"

namespace shardplan {
namespace {

// At most (kMarks + 1) * kInterval operations are in flight, each of ten commands at most: fewer
// than the 1024 that a queue of the driver holds. That is tens of milliseconds of work.
constexpr std::int64_t kInterval = 16;
constexpr std::int64_t kMarks = 4;

}  // namespace

CudaPace::CudaPace(const std::vector<cudaStream_t>& streams) : streams_(streams) {
  marks_.resize(kMarks);
  for (std::vector<cudaEvent_t>& mark : marks_) {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      CUDA_CHECK(cudaEventCreateWithFlags(&mark.emplace_back(), cudaEventDisableTiming));
    }
  }
}

CudaPace::~CudaPace() {
  for (const std::vector<cudaEvent_t>& mark : marks_) {
    for (cudaEvent_t event : mark) { cudaEventDestroy(event); }
  }
}

void CudaPace::before_launch() {
  if (launched_++ % kInterval != 0) {
    return;
  }
  const std::vector<cudaEvent_t>& mark =
      marks_[static_cast<std::size_t>(launched_ / kInterval % kMarks)];
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    CUDA_CHECK(cudaEventSynchronize(mark[i]));
    CUDA_CHECK(cudaEventRecord(mark[i], streams_[i]));
  }
}

}  // namespace shardplan
