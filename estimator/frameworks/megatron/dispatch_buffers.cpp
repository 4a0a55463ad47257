#include "estimator/frameworks/megatron/dispatch_buffers.h"

#include <algorithm>
#include <array>

#include "estimator/frameworks/megatron/dispatch_cost.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/expert_routing.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/plan/units.h"

namespace shardplan::megatron {
namespace {

// Slots of tokens on arrival, of a pair of ranks and channel: the larger of dispatch and combine,
// where the network's are rounded up to a multiple of what is sent at once.
struct DeepEpSlots {
  std::int64_t ranks;
  std::int64_t near;
  std::int64_t network;
};
constexpr std::array<DeepEpSlots, 10> kDeepEpSlots = {{
    {.ranks = 2, .near = 256, .network = 0},
    {.ranks = 4, .near = 256, .network = 0},
    {.ranks = 8, .near = 256, .network = 0},
    {.ranks = 16, .near = 288, .network = 140},
    {.ranks = 24, .near = 288, .network = 128},
    {.ranks = 32, .near = 288, .network = 128},
    {.ranks = 64, .near = 288, .network = 140},
    {.ranks = 128, .near = 560, .network = 132},
    {.ranks = 144, .near = 720, .network = 132},
    {.ranks = 160, .near = 720, .network = 132},
}};

const DeepEpSlots* slots_of(std::int64_t ranks) {
  const auto* const found = std::ranges::find(kDeepEpSlots, ranks, &DeepEpSlots::ranks);
  return found == kDeepEpSlots.end() ? nullptr : found;
}

std::int64_t deepep_bytes(std::int64_t ranks, std::int64_t hidden, std::int64_t channels) {
  constexpr std::int64_t kNear = 8;  // NUM_MAX_NVL_PEERS
  constexpr std::int64_t kWorkspace = 32 * kMiB;
  constexpr std::int64_t kPage = 2 * kMiB;
  constexpr std::int64_t kHeapStep = 512 * kMiB;  // NVSHMEM_CUMEM_GRANULARITY
  // A token with its origin, 128 choices of 8 bytes with their weights, 128 scales.
  const std::int64_t slot = 2 * hidden + 8 + 128 * (8 + 4 + 4);
  const DeepEpSlots* const slots = slots_of(ranks);
  if (slots == nullptr) {
    return 0;
  }
  const std::int64_t near = channels * std::min(ranks, kNear) * slots->near * slot;
  const std::int64_t network = 2 * channels * (ranks / kNear) * slots->network * (slot + 16);
  return kWorkspace + round_up(near, kPage) + (ranks > kNear ? round_up(network, kHeapStep) : 0);
}

// Tokens in bf16 with the probabilities of the experts that they may be on their way to, in fp32,
// and a scale for every 128 elements.
std::int64_t hybridep_bytes(const Job& job, const Plan& plan, const GroupShape& group) {
  constexpr std::int64_t kTokenStep = 16;
  const std::int64_t hidden = routed_width(job.model);
  const std::int64_t tokens = round_up(block_shape(job, plan).sharded_tokens, kTokenStep);
  const std::int64_t experts = div_ceil(job.model.moe.num_experts, plan.ep);
  const std::int64_t near = experts * group.ranks_per_domain;
  const std::int64_t scales = 4 * (hidden / 128);
  const std::int64_t others = group.size / group.ranks_per_domain - 1;
  const std::int64_t inside = tokens * group.size * (2 * hidden + 4 * near + scales);
  const std::int64_t own = tokens * (2 * hidden + 4 * experts * group.size + scales);
  const std::int64_t across = tokens * others * (3 * (2 * hidden + 4 * near) + scales);
  return inside + (others > 0 ? own + across : 0);
}

}  // namespace

bool deepep_serves(std::int64_t ranks) {
  return slots_of(ranks) != nullptr;
}

std::vector<std::int64_t> deepep_ranks() {
  std::vector<std::int64_t> ranks;
  for (const DeepEpSlots& slots : kDeepEpSlots) { ranks.push_back(slots.ranks); }
  return ranks;
}

std::int64_t dispatch_buffer_bytes(const Job& job, const Plan& plan) {
  if (job.model.moe.num_experts == 0 || !sends_tokens_once(job.profile)) {
    return 0;
  }
  const GroupShape group = group_shape(job, plan, GroupKind::kExperts);
  return job.profile.moe_dispatcher == MoeDispatcher::kDeepEp
             ? deepep_bytes(group.size, routed_width(job.model), dispatch_sms(job.profile) / 2)
             : hybridep_bytes(job, plan, group);
}

}  // namespace shardplan::megatron
