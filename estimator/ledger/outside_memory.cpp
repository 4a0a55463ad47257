// What the driver counts beside the allocator's segments.
//
// NCCL's share was taken apart on 4 H200 (NCCL 2.28.9, NVLS off; tools/measure_communicators.py,
// data/measured/communicators_h200.json): every communicator costs the same again, whatever its
// ranks, and connections come with the first collective or the first send of that communicator.
#include "estimator/ledger/outside_memory.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "estimator/frameworks/megatron/dispatch_buffers.h"
#include "estimator/frameworks/megatron/user_buffers.h"
#include "estimator/frameworks/native/communicators.h"
#include "estimator/frameworks/pieces/communicators.h"

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

// The native trainer's own values, driver 580, CUDA 13.0, NCCL 2.28.9 (data/measured/
// training_h200.txt): 534 MiB beside the arenas of one GPU; on two, less the communicators' own,
// 374 MiB more under dp or tp, and 62 beyond that with pp or cp.
const NativeMemory kNativeOnH200{.context_bytes = 520 * kMiB,
                                 .library_bytes = 14 * kMiB,
                                 .nccl_bytes = 374 * kMiB,
                                 .first_send_bytes = 62 * kMiB,
                                 .source = {}};

// Bytes that one communicator and one process pay, from the GPU's file where it has them.
struct Prices {
  std::int64_t context = 0;
  std::int64_t libraries = 0;
  std::int64_t nccl = 0;
  std::int64_t first_collective = 0;
  std::int64_t idle = 0;
  std::int64_t ring = 0;
  std::int64_t peer = 0;
};

Prices prices_of(const Job& job) {
  const GpuSpec& gpu = job.cluster.gpu;
  Prices prices;
  prices.context = gpu.context_bytes.value_or(kContextBytes);
  prices.libraries = gpu.library_bytes.value_or(kLibraryBytes);
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

// A piece of memory outside the allocator: what a row says, without allocating.
struct Piece {
  Component component = Component::kCommunication;
  std::string_view prefix = {};
  std::string_view name = {};
  std::int64_t bytes = 0;
  std::string_view formula = {};
  Origin origin = Origin::kMeasured;
};

Origin origin_of(const std::optional<std::int64_t>& measured_bytes) {
  return measured_bytes ? Origin::kMeasured : Origin::kMeasuredElsewhere;
}

// Which groups have a communicator: all at start-up, or those that were used.
enum class Creation { kAll, kUsed };

bool is_created(const Communicator& communicator, Creation creation) {
  switch (creation) {
    case Creation::kAll: return communicator.exists;
    case Creation::kUsed: return communicator.connections.any();
  }
  return false;
}

template <std::size_t size, class Visit>
void visit_communicators(const std::array<Communicator, size>& communicators, Creation creation,
                         const Prices& prices, Origin origin, Visit& visit) {
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
    visit({.prefix = "communicator.",
           .name = communicator.name,
           .bytes = bytes_of(communicator, prices),
           .formula = "several ranks: idle [+ ring: 12 MiB x channels] [+ 12 MiB x channels x "
                      "NVLink peers] [+ network pool]; one rank: 388 MiB (NCCL 2.28.9, measured)",
           .origin = origin});
  }
  if (any) {
    visit({.name = "nccl",
           .bytes = prices.nccl,
           .formula = "once, first communicator (measured)",
           .origin = origin});
  }
  if (any_ring) {
    visit({.name = "nccl.first_collective",
           .bytes = prices.first_collective,
           .formula = "once, first connected ring (measured)",
           .origin = origin});
  }
  if (any_peer) {
    visit({.name = "nccl.first_send",
           .bytes = kFirstSendBytes,
           .formula = "once, first connected peer (measured)",
           .origin = origin});
  }
}

template <class Visit>
void visit_process(const Prices& prices, Origin context, Origin libraries, Visit& visit) {
  const auto formula = [](Origin origin) {
    return origin == Origin::kMeasured ? "measured on this GPU" : "measured on an H200";
  };
  visit({.component = Component::kContext,
         .name = "cuda_context",
         .bytes = prices.context,
         .formula = formula(context),
         .origin = context});
  visit({.component = Component::kWorkspace,
         .name = "libraries",
         .bytes = prices.libraries,
         .formula = formula(libraries),
         .origin = libraries});
}

template <class Visit>
void visit_user_buffers(const Job& job, const Plan& plan, Visit& visit) {
  if (!has_user_buffers(job, plan)) {
    return;
  }
  for (const UserBuffer& buffer : user_buffers(job, plan)) {
    visit({.prefix = "userbuffers.",
           .name = buffer.name,
           .bytes = buffer.bytes,
           .formula = "b s / c h elements, fp8 where it gathers fp8, in pages of 2 MiB; what is "
                      "gathered into it stays counted in the allocator, too",
           .origin = Origin::kDocumented});
  }
}

template <class Visit>
void visit_dispatch_buffer(const Job& job, const Plan& plan, Visit& visit) {
  const std::int64_t bytes = dispatch_buffer_bytes(job, plan);
  if (bytes > 0) {
    visit({.name = "dispatch_buffer",
           .bytes = bytes,
           .formula = "of tokens on their way to experts and back, one for all layers",
           .origin = Origin::kDocumented});
  }
}

// Our own trainer bounds the channels of its communicators, so that they can be counted; what it
// pays once is measured.
template <class Visit>
void visit_native(const Job& job, const Plan& plan, std::int64_t pp_rank, Visit& visit) {
  const GpuSpec& gpu = job.cluster.gpu;
  const NativeMemory& once = gpu.native ? *gpu.native : kNativeOnH200;
  const Origin origin = gpu.native ? Origin::kMeasured : Origin::kMeasuredElsewhere;
  visit_process({.context = once.context_bytes, .libraries = once.library_bytes}, origin, origin,
                visit);
  bool any = false;
  for (const NativeCommunicator& communicator : native_communicators(job, plan, pp_rank)) {
    if (communicator.bytes == 0) {
      continue;
    }
    any = true;
    visit({.prefix = "communicator.",
           .name = communicator.name,
           .bytes = communicator.bytes,
           .formula = "4 MiB + 6 MiB x channels + 12 MiB x connected channels, arriving 10 and "
                      "leaving 2 (NCCL 2.28, src/channel.cc, src/transport/p2p.cc)",
           .origin = Origin::kDocumented});
  }
  // Absent from the file of a GPU that was measured alone.
  const auto visit_nccl = [&](std::string_view name, std::string_view formula,
                              std::optional<std::int64_t> NativeMemory::*field) {
    const auto measured_bytes = gpu.native ? *gpu.native.*field : std::nullopt;
    visit({.name = name,
           .bytes = measured_bytes.value_or((kNativeOnH200.*field).value()),
           .formula = formula,
           .origin = origin_of(measured_bytes)});
  };
  if (any) {
    visit_nccl("nccl", "once, first communicator (measured)", &NativeMemory::nccl_bytes);
  }
  // Keys and values that go around the ring are messages; those that are gathered are broadcasts,
  // which take as much.
  if (plan.pp > 1 || plan.cp > 1) {
    visit_nccl("nccl.first_send", "once, first message, ring shift or broadcast (measured)",
               &NativeMemory::first_send_bytes);
  }
}

template <class Visit>
void visit_pieces(const Job& job, const Plan& plan, std::int64_t pp_rank, Visit visit) {
  const GpuSpec& gpu = job.cluster.gpu;
  if (job.profile.memory_model == MemoryModel::kNative) {
    visit_native(job, plan, pp_rank, visit);
    return;
  }
  const Prices prices = prices_of(job);
  const GroupGrid grid{.job = job, .plan = plan, .pp_rank = pp_rank};
  visit_process(prices, origin_of(gpu.context_bytes), origin_of(gpu.library_bytes), visit);
  const Origin origin = origin_of(gpu.first_communicator_bytes);
  const auto visit_groups = [&](const auto& communicators, Creation creation) {
    visit_communicators(communicators, creation, prices, origin, visit);
  };
  switch (job.profile.memory_model) {
    case MemoryModel::kTorchtitan:
      return visit_groups(torchtitan_communicators(grid), Creation::kAll);
    case MemoryModel::kDeepspeed:
      return visit_groups(deepspeed_communicators(grid), Creation::kAll);
    case MemoryModel::kNanotron: return visit_groups(nanotron_communicators(grid), Creation::kAll);
    default:
      visit_groups(megatron_communicators(grid),
                   job.profile.eager_communicators ? Creation::kAll : Creation::kUsed);
      visit_user_buffers(job, plan, visit);
      visit_dispatch_buffer(job, plan, visit);
  }
}

}  // namespace

std::vector<Row> outside_rows(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  std::vector<Row> rows;
  visit_pieces(job, plan, pp_rank, [&](const Piece& piece) {
    rows.push_back({.component = piece.component,
                    .name = std::string(piece.prefix) + std::string(piece.name),
                    .elements = piece.bytes,
                    .dtype = DType::kBool,
                    .bytes = piece.bytes,
                    .copies = 1,
                    .born = {.name = "start"},
                    .dies = {.name = "end"},
                    .formula = std::string(piece.formula),
                    .in_allocator = false,
                    .origin = piece.origin});
  });
  return rows;
}

std::int64_t outside_bytes(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  std::int64_t bytes = 0;
  visit_pieces(job, plan, pp_rank, [&](const Piece& piece) { bytes += piece.bytes; });
  return bytes;
}

// cuDNN 9.19, plan construction for an H200: default engine an fp32 accumulator of dQ and the
// statistics; deterministic one bf16 tile pair [ceil64(sq), ceil64(skv)] per query head. With fewer
// kv heads than query heads, fp32 dK and dV are expanded to query heads.
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape, bool deterministic) {
  const std::int64_t heads = shape.batch * shape.query_heads;
  const std::int64_t statistics = 4 * heads * shape.query_length;
  const std::int64_t expanded =
      shape.query_heads != shape.kv_heads ? 4 * heads * shape.kv_length * shape.head_dim : 0;
  const std::int64_t gradients =
      deterministic ? 2 * heads * round_up(shape.query_length, 64) * round_up(shape.kv_length, 64)
                    : 4 * heads * shape.query_length * shape.head_dim;
  return gradients + statistics + expanded;
}

}  // namespace shardplan
