// NCCL 2.28: initChannel (src/channel.cc) makes three device allocations for every channel of a
// communicator and devCommSetup (src/init.cc) two for the communicator, all of them of cuMem's
// granularity, 2 MiB (src/include/alloc.h). A connected channel holds 10 MiB where data arrives
// and 2 MiB where it leaves on sm90 (src/include/device.h, src/transport/p2p.cc: LL 512 KiB,
// LL128 4800 KiB, Simple 4 MiB, rounded up). 32 channels unused are 196 MiB, 64 are 388 MiB: what
// data/measured/communicators_h200.json has. The trainer bounds the channels of every communicator
// (ncclConfig maxCTAs) and uses the ring algorithm only (NCCL_ALGO).
//
// There is one communicator for every set of ranks and stream of the program on which collectives
// run, and one for every direction in which a rank sends messages to another.
#include "estimator/frameworks/native/communicators.h"

#include <algorithm>

#include "estimator/plan/layer_partition.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/plan/units.h"

namespace shardplan::native {
namespace {

constexpr std::int64_t kGranule = 2 * kMiB;
constexpr std::int64_t kArrivingBytes = 10 * kMiB;  // of a connected channel
constexpr std::int64_t kLeavingBytes = 2 * kMiB;

constexpr std::int64_t kWideChannels = 16;
constexpr std::int64_t kRingChannels = 8;  // keys and values around the cp ring
constexpr std::int64_t kMessageChannels = 4;
constexpr std::int64_t kScalarChannels = 2;  // norms, counts of experts' rows

constexpr std::int64_t connected_bytes(std::int64_t channels) {
  return 2 * kGranule + channels * (3 * kGranule + kArrivingBytes + kLeavingBytes);
}
// To and from one neighbour: a communicator for either direction.
constexpr std::int64_t kNeighbourBytes = 2 * (2 * kGranule + kMessageChannels * 3 * kGranule) +
                                         kMessageChannels * (kArrivingBytes + kLeavingBytes);

struct Use {
  std::string_view name;
  GroupKind kind = GroupKind::kTp;
  std::int64_t channels = 0;  // 0: not used
};

// Appends the communicators of one stream; groups with the same members share one.
template <std::size_t count>
void add_stream(const Job& job, const Plan& plan, const std::array<Use, count>& uses,
                NativeCommunicators& list, std::size_t& size) {
  std::array<std::int64_t, count> channels{};
  for (std::size_t i = 0; i < count; ++i) {
    if (uses[i].channels == 0 || group_shape(job, plan, uses[i].kind).size < 2) {
      continue;
    }
    std::size_t first = 0;
    while (first < i &&
           (channels[first] == 0 || !same_members(job, plan, uses[first].kind, uses[i].kind))) {
      ++first;
    }
    channels[first] = std::max(channels[first], uses[i].channels);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (channels[i] > 0) {
      list[size++] = {.name = uses[i].name, .bytes = connected_bytes(channels[i])};
    }
  }
}

// Neighbours in the pipeline; with several chunks a rank the last one's is the first.
std::int64_t num_neighbours(const Plan& plan, std::int64_t pp_rank) {
  if (plan.pp < 3) {
    return plan.pp - 1;
  }
  return plan.vpp > 1 || (pp_rank > 0 && pp_rank < plan.pp - 1) ? 2 : 1;
}

// Layers of the chunk at this position of the model, as layers_per_chunk() divides them.
std::int64_t num_layers(const Job& job, const Plan& plan, std::int64_t position) {
  if (!plan.layers_per_chunk.empty()) {
    return plan.layers_per_chunk[static_cast<std::size_t>(position)];
  }
  const std::int64_t embedding = job.profile.account_for_embedding_in_split ? 1 : 0;
  const std::int64_t loss = job.profile.account_for_loss_in_split ? 1 : 0;
  const std::int64_t chunks = plan.pp * plan.vpp;
  return (job.model.num_layers() + embedding + loss) / chunks - (position == 0 ? embedding : 0) -
         (position == chunks - 1 ? loss : 0);
}

bool stage_has_experts(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  std::int64_t layer = 0;
  for (std::int64_t position = 0; position < plan.pp * plan.vpp; ++position) {
    const std::int64_t end = layer + num_layers(job, plan, position);
    for (; layer < end; ++layer) {
      if (job.model.layers[static_cast<std::size_t>(layer)].is_moe &&
          pp_rank_of_chunk(plan, position) == pp_rank) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

NativeCommunicators native_communicators(const Job& job, const Plan& plan, std::int64_t pp_rank) {
  const bool has_experts = job.model.has_moe_layers();
  const bool holds_experts = has_experts && stage_has_experts(job, plan, pp_rank);
  const bool is_end = pp_rank == 0 || pp_rank == plan.pp - 1;
  const bool is_tied = job.model.tied_embeddings && plan.pp > 1 && is_end;
  const bool gathers = plan.cp_method == CpMethod::kAllGather;
  const auto if_used = [](bool is_used, std::int64_t channels) { return is_used ? channels : 0; };
  NativeCommunicators list{};
  std::size_t size = 0;
  // Gradients, their norm, and parameters.
  add_stream<8>(
      job, plan,
      {{{"data.dp_cp", GroupKind::kDpCp, if_used(plan.zero == 0, kWideChannels)},
        {"data.dense_shard", GroupKind::kDenseShard, kWideChannels},
        {"data.dense_replica", GroupKind::kDenseReplica, kWideChannels},
        {"data.expert_dp", GroupKind::kExpertDp,
         if_used(holds_experts && plan.zero == 0, kWideChannels)},
        {"data.expert_shard", GroupKind::kExpertShard, if_used(has_experts, kWideChannels)},
        {"data.expert_replica", GroupKind::kExpertReplica, if_used(holds_experts, kWideChannels)},
        {"data.tp", GroupKind::kTp, kScalarChannels},
        {"data.experts", GroupKind::kExperts, if_used(has_experts, kScalarChannels)}}},
      list, size);
  // The norm over the pipeline; with two stages the same ranks as a tied embedding's.
  if (plan.pp > 1) {
    const bool is_one = is_tied && plan.pp == 2;
    list[size++] = {.name = "data.pp",
                    .bytes = connected_bytes(is_one ? kWideChannels : kScalarChannels)};
    if (is_tied && !is_one) {
      list[size++] = {.name = "data.embedding", .bytes = connected_bytes(kWideChannels)};
    }
  }
  add_stream<3>(job, plan,
                {{{"tensor.tp", GroupKind::kTp, kWideChannels},
                  {"tensor.cp", GroupKind::kCp, if_used(gathers, kWideChannels)},
                  {"tensor.tp_cp", GroupKind::kTpCp, if_used(holds_experts, kScalarChannels)}}},
                list, size);
  add_stream<1>(
      job, plan,
      {{{"context.cp", GroupKind::kCp, if_used(plan.cp_method == CpMethod::kRing, kRingChannels)}}},
      list, size);
  add_stream<1>(job, plan,
                {{{"experts", GroupKind::kExperts, if_used(holds_experts, kScalarChannels)}}}, list,
                size);
  if (plan.pp > 1) {
    list[size++] = {.name = "messages", .bytes = num_neighbours(plan, pp_rank) * kNeighbourBytes};
  }
  return list;
}

}  // namespace shardplan::native
