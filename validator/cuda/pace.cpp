#include "validator/cuda/pace.h"

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMarks = 4;

// At most (kMarks + 1) of these are in flight, of which a collective among n members is 5(n-1)
// commands: two meetings, each a word written to and one awaited from all others, and a copy to
// each. On two and four GPUs that never filled a queue of the driver, which holds 1024; on eight it
// is more than twice as many. That is tens of milliseconds of work.
std::int64_t interval_for(std::int64_t members) {
  return members > 4 ? 8 : 16;
}

}  // namespace

CudaPace::CudaPace(const std::vector<cudaStream_t>& streams, std::int64_t members)
    : streams_(streams), interval_(interval_for(members)) {
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
  if (launched_++ % interval_ != 0) {
    return;
  }
  const std::vector<cudaEvent_t>& mark =
      marks_[static_cast<std::size_t>(launched_ / interval_ % kMarks)];
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    CUDA_CHECK(cudaEventSynchronize(mark[i]));
    CUDA_CHECK(cudaEventRecord(mark[i], streams_[i]));
  }
}

}  // namespace shardplan
