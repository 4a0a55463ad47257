// NCCL's share was taken apart on 4 H200 (NCCL 2.28.9, NVLS off; tools/measure_communicators.py,
// data/measured/communicators_h200.json): every communicator costs the same again, whatever its
// ranks, and connections come with the first collective or the first send of that communicator.
#include "estimator/frameworks/pieces/communicators.h"

#include <algorithm>

#include "estimator/plan/units.h"

namespace shardplan {
namespace {

// Where `calibrate` has not run: the H200's values.
constexpr std::int64_t kContextBytes = 649'986'048;  // torch process, driver 580, CUDA 13.0
constexpr std::int64_t kLibraryBytes = 154'075'136;  // cuBLAS, cuDNN, loaded kernels
constexpr std::int64_t kNcclBytes = 170 * kMiB;      // with the first communicator of a process
constexpr std::int64_t kFirstCollectiveBytes = 186 * kMiB;   // with its first connected ring
constexpr std::int64_t kFirstSendBytes = 62 * kMiB;          // with its first connected peer
constexpr std::int64_t kIdleCommunicatorBytes = 197 * kMiB;  // of several ranks, never used
constexpr std::int64_t kSingleRankBytes = 388 * kMiB;        // of one rank, used or not

// NCCL 2.28 src/include/device.h and src/transport/p2p.cc on sm90, per channel and direction:
// 10 MiB where data arrives (LL 512 KiB, LL128 4800 KiB, Simple 4 MiB, rounded up), 2 MiB where it
// leaves. src/graph: 24 ring channels and 32 send/receive channels over NV18.
constexpr std::int64_t kChannelBytes = 12 * kMiB;
constexpr std::int64_t kRingChannels = 24;
constexpr std::int64_t kPeerChannels = 32;
// Peers beyond NVLink share one pool per communicator: 64 channels x 16 slots x 512 KiB.
constexpr std::int64_t kNetworkPoolBytes = std::int64_t{64} * 16 * 512 * kKiB;

// Bytes that communicators take, and a process with the first ones, from the GPU's file where it
// has them.
struct Prices {
  std::int64_t nccl = 0;
  std::int64_t first_collective = 0;
  std::int64_t idle = 0;
  std::int64_t ring = 0;
  std::int64_t peer = 0;
};

Prices prices_of(const Job& job) {
  const GpuSpec& gpu = job.cluster.gpu;
  Prices prices;
  prices.idle = gpu.idle_communicator_bytes.value_or(kIdleCommunicatorBytes);
  const std::int64_t used =
      gpu.next_communicator_bytes.value_or(prices.idle + kRingChannels * kChannelBytes);
  prices.ring = std::max<std::int64_t>(used - prices.idle, 0);
  prices.peer = kPeerChannels * kChannelBytes;
  const std::int64_t once =
      gpu.first_communicator_bytes.value_or(used + kNcclBytes + kFirstCollectiveBytes) - used;
  prices.nccl = std::clamp<std::int64_t>(once, 0, kNcclBytes);
  prices.first_collective = std::max<std::int64_t>(once - prices.nccl, 0);
  return prices;
}

std::int64_t bytes_of(const Communicator& communicator, const Prices& prices) {
  if (communicator.ranks == 1) {
    return kSingleRankBytes;
  }
  const Connections& used = communicator.connections;
  return prices.idle + (used.ring ? prices.ring : 0) + used.near_peers * prices.peer +
         (used.has_network_peers ? kNetworkPoolBytes : 0);
}

bool is_created(const Communicator& communicator, Creation creation) {
  switch (creation) {
    case Creation::kAll: return communicator.exists;
    case Creation::kUsed: return communicator.connections.any();
  }
  return false;
}

}  // namespace

void add_communicators(const Job& job, std::span<const Communicator> communicators,
                       Creation creation, OutsideParts& parts) {
  const Prices prices = prices_of(job);
  const Origin origin = origin_of(job.cluster.gpu.first_communicator_bytes);
  bool any = false;
  bool any_ring = false;
  bool any_peer = false;
  for (const Communicator& communicator : communicators) {
    if (!is_created(communicator, creation)) {
      continue;
    }
    const Connections& used = communicator.connections;
    any = true;
    any_ring = any_ring || (used.ring && communicator.ranks > 1);
    any_peer = any_peer || used.near_peers > 0 || used.has_network_peers;
    parts.add({.prefix = "communicator.",
               .name = communicator.name,
               .bytes = bytes_of(communicator, prices),
               .formula =
                   "several ranks: idle [+ ring: 12 MiB x channels] [+ 12 MiB x channels x "
                   "NVLink peers] [+ network pool]; one rank: 388 MiB (NCCL 2.28.9, measured)",
               .origin = origin});
  }
  if (any) {
    parts.add({.name = "nccl",
               .bytes = prices.nccl,
               .formula = "once, first communicator (measured)",
               .origin = origin});
  }
  if (any_ring) {
    parts.add({.name = "nccl.first_collective",
               .bytes = prices.first_collective,
               .formula = "once, first connected ring (measured)",
               .origin = origin});
  }
  if (any_peer) {
    parts.add({.name = "nccl.first_send",
               .bytes = kFirstSendBytes,
               .formula = "once, first connected peer (measured)",
               .origin = origin});
  }
}

void add_process(std::int64_t context_bytes, Origin context, std::int64_t library_bytes,
                 Origin libraries, OutsideParts& parts) {
  const auto formula = [](Origin origin) {
    return origin == Origin::kMeasured ? "measured on this GPU" : "measured on an H200";
  };
  parts.add({.component = Component::kContext,
             .name = "cuda_context",
             .bytes = context_bytes,
             .formula = formula(context),
             .origin = context});
  parts.add({.component = Component::kWorkspace,
             .name = "libraries",
             .bytes = library_bytes,
             .formula = formula(libraries),
             .origin = libraries});
}

void add_process(const Job& job, OutsideParts& parts) {
  const GpuSpec& gpu = job.cluster.gpu;
  add_process(gpu.context_bytes.value_or(kContextBytes), origin_of(gpu.context_bytes),
              gpu.library_bytes.value_or(kLibraryBytes), origin_of(gpu.library_bytes), parts);
}

}  // namespace shardplan
