// The collectives of one group on one GPU, by NCCL. NVLink multicast stays off.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <vector>

#include "estimator/dtype.h"

namespace shardplan {

struct DeviceView;

// A name for a communicator that its members share before it exists.
ncclUniqueId new_communicator_id();

class CudaCommunicator {
 public:
  // Every member calls this at the same time, on its own device.
  CudaCommunicator(const ncclUniqueId& id, std::int64_t size, std::int64_t index);
  ~CudaCommunicator();
  CudaCommunicator(const CudaCommunicator&) = delete;
  CudaCommunicator& operator=(const CudaCommunicator&) = delete;

  // As OpKind defines them; views are contiguous.
  void all_gather(const DeviceView& in, const std::vector<DeviceView>& out, cudaStream_t stream);
  void reduce_scatter(const std::vector<DeviceView>& in, const DeviceView& out,
                      cudaStream_t stream);
  void all_reduce(const DeviceView& in, const DeviceView& out, cudaStream_t stream);
  void ring_shift(const DeviceView& in, const DeviceView& out, cudaStream_t stream);
  void send(const DeviceView& what, std::int64_t peer, cudaStream_t stream);
  void receive(const DeviceView& what, std::int64_t peer, cudaStream_t stream);

 private:
  ncclComm_t communicator_ = nullptr;
  std::int64_t size_;
  std::int64_t index_;
};

}  // namespace shardplan
