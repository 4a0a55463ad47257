#include "validator/cuda/peer_access.h"

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {

bool reach_each_other(const std::vector<std::int64_t>& devices) {
  for (const std::int64_t from : devices) {
    for (const std::int64_t to : devices) {
      int can = 1;
      if (from != to) {
        CUDA_CHECK(cudaDeviceCanAccessPeer(&can, static_cast<int>(from), static_cast<int>(to)));
      }
      if (can == 0) {
        return false;
      }
    }
  }
  return true;
}

void enable_access(std::int64_t device) {
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(static_cast<int>(device), 0);
  if (enabled != cudaErrorPeerAccessAlreadyEnabled) {
    CUDA_CHECK(enabled);
  }
  static_cast<void>(cudaGetLastError());
}

}  // namespace shardplan
