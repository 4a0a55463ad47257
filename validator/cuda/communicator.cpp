#include "validator/cuda/communicator.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "validator/cuda/rank.h"

namespace shardplan {
namespace {

void check_nccl(ncclResult_t result, const char* call, const char* file, int line) {
  if (result != ncclSuccess) {
    throw NcclError(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                        ncclGetErrorString(result) + ": " + ncclGetLastError(nullptr),
                    result == ncclUnhandledCudaError || result == ncclSystemError);
  }
}
#define NCCL_CHECK(call) check_nccl((call), #call, __FILE__, __LINE__)

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFp32: return ncclFloat32;
    case DType::kBf16: return ncclBfloat16;
    case DType::kInt32: return ncclInt32;
    default: throw std::logic_error("NCCL: no type for " + std::string(name_of(dtype)));
  }
}

// NCCL reads these once, at its first call.
void set_environment() {
  setenv("NCCL_NVLS_ENABLE", "0", 1);  // multicast can take the GPUs of a host out of service
  setenv("NCCL_ALGO", "Ring", 1);      // no buffers of trees beside those of rings
}

std::size_t count_of(const DeviceView& view) {
  return static_cast<std::size_t>(view.elements());
}

}  // namespace

ncclUniqueId new_communicator_id() {
  set_environment();
  ncclUniqueId id;
  NCCL_CHECK(ncclGetUniqueId(&id));
  return id;
}

CudaCommunicator::CudaCommunicator(const ncclUniqueId& id, std::int64_t size, std::int64_t index,
                                   std::int64_t channels)
    : size_(size), index_(index) {
  set_environment();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = static_cast<int>(channels);
  NCCL_CHECK(ncclCommInitRankConfig(&communicator_, static_cast<int>(size), id,
                                    static_cast<int>(index), &config));
}

CudaCommunicator::~CudaCommunicator() {
  if (communicator_ != nullptr) {
    ncclCommDestroy(communicator_);
  }
}

void CudaCommunicator::check() const {
  ncclResult_t state = ncclSuccess;
  NCCL_CHECK(ncclCommGetAsyncError(communicator_, &state));
  NCCL_CHECK(state);
}

void CudaCommunicator::abort() {
  ncclCommAbort(communicator_);
  communicator_ = nullptr;
}

void CudaCommunicator::all_gather(const DeviceView& in, const std::vector<DeviceView>& out,
                                  cudaStream_t stream) {
  if (out.size() == 1) {
    NCCL_CHECK(ncclAllGather(in.data, out[0].data, count_of(in), type_of(in.dtype), communicator_,
                             stream));
    return;
  }
  NCCL_CHECK(ncclGroupStart());
  for (std::int64_t member = 0; member < size_; ++member) {
    const DeviceView& part = out[static_cast<std::size_t>(member)];
    NCCL_CHECK(ncclBroadcast(member == index_ ? in.data : part.data, part.data, count_of(part),
                             type_of(in.dtype), static_cast<int>(member), communicator_, stream));
  }
  NCCL_CHECK(ncclGroupEnd());
}

void CudaCommunicator::reduce_scatter(const std::vector<DeviceView>& in, const DeviceView& out,
                                      cudaStream_t stream) {
  if (in.size() == 1) {
    NCCL_CHECK(ncclReduceScatter(in[0].data, out.data, count_of(out), type_of(out.dtype), ncclSum,
                                 communicator_, stream));
    return;
  }
  NCCL_CHECK(ncclGroupStart());
  for (std::int64_t member = 0; member < size_; ++member) {
    const DeviceView& part = in[static_cast<std::size_t>(member)];
    NCCL_CHECK(ncclReduce(part.data, member == index_ ? out.data : part.data, count_of(part),
                          type_of(part.dtype), ncclSum, static_cast<int>(member), communicator_,
                          stream));
  }
  NCCL_CHECK(ncclGroupEnd());
}

void CudaCommunicator::exchange(const std::vector<DeviceView>& in,
                                const std::vector<DeviceView>& out, cudaStream_t stream) {
  NCCL_CHECK(ncclGroupStart());
  for (std::int64_t i = 1; i < size_; ++i) {
    const std::int64_t member = (index_ + i) % size_;
    send(part_of(in, member, size_), member, stream);
    receive(part_of(out, member, size_), member, stream);
  }
  NCCL_CHECK(ncclGroupEnd());
}

void CudaCommunicator::all_reduce(const DeviceView& in, const DeviceView& out,
                                  cudaStream_t stream) {
  NCCL_CHECK(ncclAllReduce(in.data, out.data, count_of(in), type_of(in.dtype), ncclSum,
                           communicator_, stream));
}

void CudaCommunicator::ring_shift(const DeviceView& in, const DeviceView& out,
                                  cudaStream_t stream) {
  NCCL_CHECK(ncclGroupStart());
  send(in, (index_ + 1) % size_, stream);
  receive(out, (index_ + size_ - 1) % size_, stream);
  NCCL_CHECK(ncclGroupEnd());
}

void CudaCommunicator::send(const DeviceView& what, std::int64_t member, cudaStream_t stream) {
  NCCL_CHECK(ncclSend(what.data, count_of(what), type_of(what.dtype), static_cast<int>(member),
                      communicator_, stream));
}

void CudaCommunicator::receive(const DeviceView& what, std::int64_t member, cudaStream_t stream) {
  NCCL_CHECK(ncclRecv(what.data, count_of(what), type_of(what.dtype), static_cast<int>(member),
                      communicator_, stream));
}

}  // namespace shardplan
