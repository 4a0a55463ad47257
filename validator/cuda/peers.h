// Collectives among GPUs that can address each other's memory (in one process, or mapped through
// cudaIpc), by copy engines: without multiprocessors they neither wait for a product that fills the
// GPU nor take a part of it. Every member writes what the others lack into their memory. Before it,
// all members meet: where it goes may be overwritten. After it they meet again: it is there. Sums
// read the others' memory in a kernel, or add to what was written. Messages are written as well: a
// receive of NCCL that waits for its sender keeps four multiprocessors, and products beside it take
// 10 to 40 % longer (two H200s, 1.7B shape with vpp 4).
//
// Members meet by words: each writes a number that grows into a word of every other's memory, and
// its stream waits until the others' numbers have come (cuStreamBatchMemOp). A stream that waits
// takes no multiprocessor either.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "validator/program/communicators.h"
#include "validator/program/peer_copies.h"
#include "validator/program/program.h"

namespace shardplan {

struct DeviceView;

// A member of a communicator as this GPU addresses it.
struct Peer {
  ArenaPair arenas = {};
  std::string places = {};  // what copy_places() says of it
  // The member whose memory this is, where it stands for an absent one (backend.h).
  std::optional<std::int64_t> stand_in = std::nullopt;
};

// Whether copies can do what the operation does.
bool can_copy(const Operation& op, const CommunicatorUse& use);
// What members assume of each other, as a number: equal on all members, or they must not copy. Of
// collectives where their views lie, of messages how large they are.
std::string copy_layout(const Program& program, const CommunicatorUse& use);
// Where a rank's own words and the messages that it receives lie in its arenas, which belong to
// another stage than those of whoever sends them.
std::string copy_places(const Program& program, const CommunicatorUse& use,
                        std::int64_t words_offset);

class CudaPeers {
 public:
  // own_bytes: of this member's own arenas.
  CudaPeers(const std::vector<Peer>& members, std::int64_t index,
            std::array<std::int64_t, 2> own_bytes);

  // As CudaCommunicator.
  void all_gather(const DeviceView& in, const std::vector<DeviceView>& out, cudaStream_t stream);
  void reduce_scatter(const std::vector<DeviceView>& in, const DeviceView& out,
                      cudaStream_t stream);
  void exchange(const std::vector<DeviceView>& in, const std::vector<DeviceView>& out,
                cudaStream_t stream);
  void all_reduce(const DeviceView& in, const DeviceView& out, cudaStream_t stream);
  void ring_shift(const DeviceView& in, const DeviceView& out, cudaStream_t stream);
  // The message at this place in their order.
  void send(const DeviceView& in, std::size_t message, cudaStream_t stream);
  void receive(cudaStream_t stream);

  // Loads the kernel that adds up values of this type, by adding `view` to itself.
  static void load_sum(const DeviceView& view, cudaStream_t stream);

  // Lets every stream pass that waits for other members, on the current device.
  void release();

 private:
  void meet(cudaStream_t stream);
  // Between two meetings.
  void write(const std::vector<PeerCopy>& copies, cudaStream_t stream);

  PeerCopies copies_;
  std::vector<std::int64_t> met_ = {};      // the others that there is a meeting with
  std::vector<std::uint32_t*> words_ = {};  // by member: a word for each member, zero at first
  std::vector<void*> messages_ = {};        // of the receiver, in their order
  std::uint32_t meetings_ = 0;
};

}  // namespace shardplan
