// Which communicators a program needs, and the law that keeps them from waiting for each other.
//
// A communicator runs what is launched on it one call after another, in the order of the launches,
// whatever the CUDA streams are: its calls are a queue of their own. Two queues that cross are a
// deadlock: a rank that posts the receive of a gradient and then the send of an activation on one
// communicator never starts the send while its neighbour, which does the same, never starts the
// send that the receive waits for. Therefore:
//   - one communicator for the collectives of one set of ranks on one stream of the program, under
//     whatever kinds of groups they are known;
//   - one for the messages from one rank to another, and another one for those back.
// Then every communicator's queue on a rank is part of one stream, in the stream's order, and adds
// no order that the program has not: deadlock_problems (checks.h), which runs the streams of all
// ranks with sends that wait for their receivers, says of NCCL what it says of the program.
// Creating a communicator and connecting it by a first call wait for all its members. Every rank
// goes through its communicators in one order that all ranks share, so that these waits cannot be
// circular: that of the list below.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/plan/cluster_spec.h"
#include "validator/program/program.h"

namespace shardplan {

// Ranks of collectives are ascending. A message's are {from, to}, and its stream is kSend on both.
struct CommunicatorKey {
  Stream stream = Stream::kCompute;
  std::vector<std::int64_t> ranks = {};
  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};
std::string text_of(const CommunicatorKey& key);  // "data 0,2"; the same on every member

struct CommunicatorUse {
  CommunicatorKey key = {};
  GroupKind kind = GroupKind::kTp;  // of its first operation
  std::int64_t index = 0;           // of this rank in key.ranks
  bool goes_up = true;              // a message: to the next stage, the first one behind the last
  std::int64_t channels = 1;        // that it is bounded to, the same on every member
  std::vector<std::int64_t> operations = {};  // that run on it, in their order

  std::int64_t size() const { return static_cast<std::int64_t>(key.ranks.size()); }
  bool is_message() const { return key.stream == Stream::kSend; }
};

// What NCCL 2.28 allocates for it on the device of this rank, once it is connected: 2 MiB at a
// time, two of them for a communicator and three for a channel (src/init.cc, src/channel.cc); 10
// MiB for a channel on which data arrives and 2 MiB where it leaves (src/transport/p2p.cc, sm90).
std::int64_t device_bytes(const CommunicatorUse& use);

// Members that reach each other's memory do without NCCL where they can (cuda/peers.h): they meet
// on words, of which every member has as many as there are members. The first of them within all
// words of a rank, the same on every member; -1: it has none.
inline constexpr std::int64_t kPeerWords = 6 * kMaxPeers;  // of one rank
std::int64_t first_peer_word(const CommunicatorUse& use);

// In the order of their keys, which all ranks share. Groups of one rank need none.
std::vector<CommunicatorUse> communicators_of(const Program& program);

// Of every kind of call on the communicator the first: what connects it, and what it will need
// while it runs. Members find the same ones. Exchanges are left to the copy engines: NCCL would
// connect every member with every other one for them, which it does where copies cannot serve.
std::vector<std::int64_t> first_calls(const Program& program, const CommunicatorUse& use);

}  // namespace shardplan
