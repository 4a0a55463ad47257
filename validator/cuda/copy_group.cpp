#include "validator/cuda/copy_group.h"

#include "estimator/plan/number.h"
#include "validator/cuda/peer_access.h"
#include "validator/cuda/stopwatch.h"
#include "validator/program/communicators.h"
#include "validator/supervise/on_threads.h"

namespace shardplan {
namespace {

std::vector<std::int64_t> first_devices(std::int64_t size) {
  std::vector<std::int64_t> devices;
  for (std::int64_t device = 0; device < size; ++device) { devices.push_back(device); }
  return devices;
}

}  // namespace

// Its words are one arena and its room the other.
struct CopyGroup::Member {
  // On the current device.
  Member(int on_device, std::int64_t bytes)
      : device(on_device),
        words(std::vector<std::uint32_t>(kMaxPeers, 0)),
        room(div_exact(bytes, 2)) {
    fill_random(room, div_exact(bytes, 2), 1);
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  ~Member() { cudaSetDevice(device); }

  ArenaPair arenas() {
    return {reinterpret_cast<char*>(words.data()), reinterpret_cast<char*>(room.data())};
  }

  int device;
  DeviceBuffer<std::uint32_t> words;
  DeviceBuffer<__nv_bfloat16> room;
  std::unique_ptr<CudaPeers> peers = nullptr;
};

bool CopyGroup::can_be_of(std::int64_t size) {
  return size <= kMaxPeers && reach_each_other(first_devices(size));
}

// Memory comes and goes while no stream waits: both may wait for all that runs.
CopyGroup::CopyGroup(std::int64_t size, std::int64_t bytes)
    : members_(static_cast<std::size_t>(size)) {
  on_threads(members_.size(), [&](std::size_t i) {
    CUDA_CHECK(cudaSetDevice(static_cast<int>(i)));
    members_[i] = std::make_unique<Member>(static_cast<int>(i), bytes);
  });
  const std::array own_bytes = {static_cast<std::int64_t>(kMaxPeers * sizeof(std::uint32_t)),
                                bytes};
  std::vector<Peer> all;
  for (const auto& member : members_) {
    all.push_back({.arenas = member->arenas(), .places = "0"});  // words come first in their arena
  }
  on_threads(members_.size(), [&](std::size_t i) {
    CUDA_CHECK(cudaSetDevice(static_cast<int>(i)));
    for (const std::int64_t other : first_devices(size)) {
      if (other != static_cast<std::int64_t>(i)) {
        enable_access(other);
      }
    }
    members_[i]->peers = std::make_unique<CudaPeers>(all, static_cast<std::int64_t>(i), own_bytes);
  });
}

CopyGroup::~CopyGroup() {
  on_threads(members_.size(), [&](std::size_t i) { members_[i].reset(); });
}

void CopyGroup::on_members(const std::function<void(std::int64_t)>& body) {
  on_threads(members_.size(), [&](std::size_t i) {
    try {
      CUDA_CHECK(cudaSetDevice(static_cast<int>(i)));
      body(static_cast<std::int64_t>(i));
    } catch (...) {
      release();
      throw;
    }
  });
}

CudaPeers& CopyGroup::peers(std::int64_t rank) {
  return *members_.at(static_cast<std::size_t>(rank))->peers;
}

char* CopyGroup::room(std::int64_t rank) {
  return members_.at(static_cast<std::size_t>(rank))->arenas()[1];
}

void CopyGroup::release() const {
  for (const auto& member : members_) {
    cudaSetDevice(member->device);
    member->peers->release();
  }
}

}  // namespace shardplan
