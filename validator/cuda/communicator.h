// One communicator (communicators.h) on one GPU, by NCCL. NVLink multicast stays off, channels are
// bounded, and all sums go around rings, so that its memory can be counted.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "estimator/plan/dtype.h"

namespace shardplan {

struct DeviceView;

// A call of NCCL that failed. NCCL says of memory that ran out only that a CUDA call failed.
class NcclError : public std::runtime_error {
 public:
  NcclError(const std::string& what, bool is_cuda_failure)
      : std::runtime_error(what), is_cuda_failure_(is_cuda_failure) {}
  bool is_cuda_failure() const { return is_cuda_failure_; }

 private:
  bool is_cuda_failure_;
};

// A name for a communicator that its members share before it exists.
ncclUniqueId new_communicator_id();

class CudaCommunicator {
 public:
  // Every member calls this at the same time, on its own device.
  CudaCommunicator(const ncclUniqueId& id, std::int64_t size, std::int64_t index,
                   std::int64_t channels);
  ~CudaCommunicator();
  CudaCommunicator(const CudaCommunicator&) = delete;
  CudaCommunicator& operator=(const CudaCommunicator&) = delete;

  // As OpKind defines them; views are contiguous.
  void all_gather(const DeviceView& in, const std::vector<DeviceView>& out, cudaStream_t stream);
  void reduce_scatter(const std::vector<DeviceView>& in, const DeviceView& out,
                      cudaStream_t stream);
  void exchange(const std::vector<DeviceView>& in, const std::vector<DeviceView>& out,
                cudaStream_t stream);
  void all_reduce(const DeviceView& in, const DeviceView& out, cudaStream_t stream);
  void ring_shift(const DeviceView& in, const DeviceView& out, cudaStream_t stream);
  // `member` is an index within the communicator.
  void send(const DeviceView& what, std::int64_t member, cudaStream_t stream);
  void receive(const DeviceView& what, std::int64_t member, cudaStream_t stream);

  // Throws NcclError where a call that was launched has failed since.
  void check() const;
  // Ends whatever still runs; nothing but the destructor may follow.
  void abort();

 private:
  ncclComm_t communicator_ = nullptr;
  std::int64_t size_;
  std::int64_t index_;
};

}  // namespace shardplan
