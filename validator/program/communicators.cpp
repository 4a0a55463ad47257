#include "validator/program/communicators.h"

#include <algorithm>
#include <map>
#include <set>

namespace shardplan {
namespace {

// NCCL pays for channels: in memory (6 MiB each, and 12 MiB once it is connected) and in
// multiprocessors while it runs. Sixteen come near the rate of NVLink, and are no worse beside
// products than fewer, which take longer: under ZeRO 1 (8B shape of 16 layers, 16384 tokens on each
// of two H200s) products of 573 ms take 28, 25 and 22 ms longer beside 4, 8 and 16 channels, and
// what is left at the end of the step takes 27, 15 and 7 ms. Messages and the keys of a ring have a
// whole layer to hide behind; norms and counts are a few bytes.
std::int64_t channels_of(Stream stream, GroupKind kind) {
  constexpr std::int64_t kWide = 16;
  constexpr std::int64_t kRing = 8;
  constexpr std::int64_t kMessage = 4;
  constexpr std::int64_t kScalars = 2;
  switch (stream) {
    case Stream::kData:
      return kind == GroupKind::kTp || kind == GroupKind::kPp || kind == GroupKind::kExperts
                 ? kScalars
                 : kWide;
    case Stream::kTensor: return kind == GroupKind::kTpCp ? kScalars : kWide;
    case Stream::kContext: return kRing;
    case Stream::kExperts: return kScalars;
    case Stream::kSend:
    case Stream::kReceive: return kMessage;
    case Stream::kCompute: break;
  }
  return kWide;
}

CommunicatorKey key_of(const Program& program, const Operation& op, const Group& group) {
  if (op.kind != OpKind::kSend && op.kind != OpKind::kReceive) {
    return {.stream = op.stream, .ranks = group.ranks};
  }
  const std::int64_t peer = group.ranks.at(static_cast<std::size_t>(op.attributes.peer));
  const bool sends = op.kind == OpKind::kSend;
  return {.stream = Stream::kSend,
          .ranks = {sends ? program.rank : peer, sends ? peer : program.rank}};
}

// Between two stages both directions do.
bool goes_up(const CommunicatorKey& message, const Group& stages) {
  const auto from = std::ranges::find(stages.ranks, message.ranks[0]);
  const auto next = from + 1 == stages.ranks.end() ? stages.ranks.begin() : from + 1;
  return *next == message.ranks[1];
}

// Dense weights and experts; the shard group is the whole group where there are no replicas, and
// where there are, nothing is gathered over the whole one.
std::int64_t slot_of_weights(GroupKind kind) {
  switch (kind) {
    case GroupKind::kDpCp:
    case GroupKind::kDenseShard: return 3;
    case GroupKind::kExpertDp:
    case GroupKind::kExpertShard: return 4;
    default: return -1;
  }
}

std::int64_t slot_of(const CommunicatorUse& use) {
  switch (use.key.stream) {
    case Stream::kTensor:
      return use.kind == GroupKind::kTp ? 0 : use.kind == GroupKind::kCp ? 1 : -1;
    case Stream::kContext: return 2;
    case Stream::kData: return slot_of_weights(use.kind);
    default: return -1;
  }
}

}  // namespace

std::string text_of(const CommunicatorKey& key) {
  std::string text(name_of(key.stream));
  for (std::size_t i = 0; i < key.ranks.size(); ++i) {
    text += i == 0 ? ' ' : ',';
    text += std::to_string(key.ranks[i]);
  }
  return text;
}

std::int64_t device_bytes(const CommunicatorUse& use) {
  const bool sends = !use.is_message() || use.index == 0;
  const bool receives = !use.is_message() || use.index == 1;
  const std::int64_t per_channel = 6 + (receives ? 10 : 0) + (sends ? 2 : 0);
  return (4 + use.channels * per_channel) * kMiB;
}

std::int64_t first_peer_word(const CommunicatorUse& use) {
  // A rank receives one message from below, sends one upwards, and the same downwards.
  constexpr std::int64_t kMessages = 5 * kMaxPeers;
  const std::int64_t slot = slot_of(use);
  if (use.is_message()) {
    return use.goes_up ? kMessages : kMessages + use.size();
  }
  return slot < 0 || use.size() > kMaxPeers ? -1 : slot * kMaxPeers;
}

std::vector<CommunicatorUse> communicators_of(const Program& program) {
  std::map<CommunicatorKey, CommunicatorUse> uses;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& op = program.operations[i];
    if (!is_communication(op.kind)) {
      continue;
    }
    const Group& group = program.groups.at(static_cast<std::size_t>(op.group));
    if (group.ranks.size() < 2) {
      continue;
    }
    const CommunicatorKey key = key_of(program, op, group);
    const auto [at, is_new] = uses.try_emplace(key);
    CommunicatorUse& use = at->second;
    if (is_new) {
      use.key = key;
      use.kind = group.kind;
      use.index = std::ranges::find(key.ranks, program.rank) - key.ranks.begin();
      if (use.is_message()) {
        use.goes_up = goes_up(key, group);
      }
    }
    use.channels = std::max(use.channels, channels_of(key.stream, group.kind));
    use.operations.push_back(static_cast<std::int64_t>(i));
  }
  std::vector<CommunicatorUse> list;
  for (auto& [key, use] : uses) { list.push_back(std::move(use)); }
  return list;
}

std::vector<std::int64_t> first_calls(const Program& program, const CommunicatorUse& use) {
  std::set<OpKind> seen;
  std::vector<std::int64_t> calls;
  for (const std::int64_t i : use.operations) {
    const OpKind kind = program.operations[static_cast<std::size_t>(i)].kind;
    if (kind != OpKind::kExchange && seen.insert(kind).second) {
      calls.push_back(i);
    }
  }
  return calls;
}

}  // namespace shardplan
