// Collectives among GPUs that can address each other's memory (in one process, or mapped through
// cudaIpc), by copy engines: without multiprocessors they neither wait for a product that fills the
// GPU nor take a part of it. Every member pulls what it lacks out of the others' memory. Before it,
// all members meet: what is pulled is there. After it they meet again: what they pulled may be
// overwritten. Sums read the others' memory in a kernel, or add to what was pulled.
//
// Members meet by words: each writes a number that grows into a word of every other's memory, and
// its stream waits until the others' numbers have come (cuStreamBatchMemOp). A stream that waits
// takes no multiprocessor either.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "validator/communicators.h"
#include "validator/program.h"

namespace shardplan {

struct DeviceView;

inline constexpr std::int64_t kMaxPeers = 8;       // of one group: GPUs of a host
inline constexpr std::int64_t kMaxPeerGroups = 5;  // of one rank: what peer_slot() tells apart

// Both arenas of a rank as this GPU addresses them, persistent and dynamic.
using ArenaPair = std::array<char*, 2>;

// Which words the communicator's members meet on, the same on every member; -1: it has none.
std::int64_t peer_slot(const CommunicatorUse& use);
// Whether copies can do what the operation does. Views of the members lie at equal places.
bool can_copy(const Operation& op, const CommunicatorUse& use);
// Where members look into each other's memory, as a number: equal on all members, or they must not.
std::string copy_layout(const Program& program, const CommunicatorUse& use);

class CudaPeers {
 public:
  struct Memory {
    std::vector<ArenaPair> members = {};     // this one's own at `index`
    std::array<std::int64_t, 2> bytes = {};  // of its own arenas
    std::uint32_t* words = nullptr;          // its own kMaxPeers words, zero at first
  };
  CudaPeers(Memory memory, std::int64_t index) : memory_(std::move(memory)), index_(index) {}

  // As CudaCommunicator.
  void all_gather(const DeviceView& in, const std::vector<DeviceView>& out, cudaStream_t stream);
  void reduce_scatter(const std::vector<DeviceView>& in, const DeviceView& out,
                      cudaStream_t stream);
  void all_reduce(const DeviceView& in, const DeviceView& out, cudaStream_t stream);
  void ring_shift(const DeviceView& in, const DeviceView& out, cudaStream_t stream);

  // Loads the kernel that adds up values of this type, by adding `view` to itself.
  static void load_sum(const DeviceView& view, cudaStream_t stream);

  // Lets every stream pass that waits for other members, on the current device.
  void release();

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(memory_.members.size()); }
  // The members behind this one, the nearest first.
  std::vector<std::int64_t> others() const;
  // What a member has where this one has `own`.
  void* at(std::int64_t member, void* own) const;
  void meet(cudaStream_t stream);

  Memory memory_;
  std::int64_t index_;
  std::uint32_t meetings_ = 0;
};

}  // namespace shardplan
