#include "validator/cuda/progress.h"

#include <cuda.h>

#include <cstddef>

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr auto kPageBytes = static_cast<std::size_t>(kProgressBytes);

}  // namespace

DeviceMarks::DeviceMarks(ProgressPage& page) : page_(page) {
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const bool has_entry =
      cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &write_value_, 12000,
                                       cudaEnableDefault, &found) == cudaSuccess &&
      found == cudaDriverEntryPointSuccess;
  void* address = nullptr;
  if (has_entry && cudaHostRegister(&page_, kPageBytes, cudaHostRegisterMapped) == cudaSuccess) {
    if (cudaHostGetDevicePointer(&address, &page_, 0) == cudaSuccess) {
      device_page_ = static_cast<ProgressPage*>(address);
    } else {
      cudaHostUnregister(&page_);
    }
  }
  static_cast<void>(cudaGetLastError());  // not having marks is no failure
}

DeviceMarks::~DeviceMarks() {
  if (device_page_ != nullptr) {
    cudaHostUnregister(&page_);
    for (auto& mark : page_.device_operation) { mark = 0; }
  }
}

void DeviceMarks::write(const Operation& op, std::int64_t value, cudaStream_t stream) const {
  if (device_page_ == nullptr || !is_communication(op.kind)) {
    return;
  }
  const auto mark = reinterpret_cast<CUdeviceptr>(
      &device_page_->device_operation[static_cast<std::size_t>(op.stream)]);
  const auto call = reinterpret_cast<decltype(&cuStreamWriteValue64)>(write_value_);
  if (call(stream, mark, static_cast<cuuint64_t>(value), 0) != CUDA_SUCCESS) {
    throw CudaError(cudaErrorUnknown, "cuStreamWriteValue64", __FILE__, __LINE__);
  }
}

void DeviceMarks::begin(const Program& program, std::int64_t operation, cudaStream_t stream) const {
  write(program.operations[static_cast<std::size_t>(operation)], operation + 1, stream);
}

void DeviceMarks::end(const Program& program, std::int64_t operation, cudaStream_t stream) const {
  write(program.operations[static_cast<std::size_t>(operation)], 0, stream);
}

void DeviceMarks::beat_if_moved(Progress& progress) {
  std::array<std::int64_t, kNumStreams> now{};
  for (std::size_t i = 0; i < now.size(); ++i) { now[i] = page_.device_operation[i]; }
  if (now != last_) {
    last_ = now;
    progress.beat();
  }
}

}  // namespace shardplan
