// Floors are sums of minima: of the state over the axes that change it, of the activations over
// theirs, of the pipeline's time, of what follows it. A sum of minima is no more than any sum.
#include "estimator/price/memory_floor.h"

#include <algorithm>

#include "estimator/answer/blocks.h"
#include "estimator/frameworks/framework.h"
#include "estimator/price/branch.h"

namespace shardplan {
namespace {

// Combinations of a branch whose activations are summed one by one; of more, only the state counts.
constexpr std::size_t kMostActivations = 4;

// The ranks that a floor looks at: both ends of the pipeline and the first between them.
std::array<std::int64_t, 3> ranks_of(const Plan& plan) {
  return {0, std::min<std::int64_t>(1, plan.pp - 1), plan.pp - 1};
}

using PhaseBytes = std::array<std::int64_t, kNumPhases>;

void lower(PhaseBytes& floor, const PhaseBytes& bytes) {
  for (std::size_t phase = 0; phase < floor.size(); ++phase) {
    floor[phase] = std::min(floor[phase], bytes[phase]);
  }
}

// Where it takes rows of the optimizer away and adds none.
void choose_most_offload(const PriceFreedom& open, Plan& plan) {
  if (!open.offload.empty()) {
    plan.offload = *std::ranges::max_element(open.offload, {}, &Offload::optimizer);
  }
}

// Bytes of an element's optimizer state, of a plan with the smallest types.
std::int64_t optimizer_bytes(const Job& job, const Plan& plan) {
  const bool has_main = plan.precision != Precision::kFp32;
  return (has_main ? bytes_of(plan.master_dtype) : 0) + bytes_of(plan.exp_avg_dtype) +
         (job.optimizer == OptimizerKind::kAdamW ? bytes_of(plan.exp_avg_sq_dtype) : 0);
}

// Weights, gradients and optimizer state of the fullest of ranks_of, where ranks hold the first two
// whole: what start-up leaves in the allocator is not replayed for them. 0: not so here, or not all
// parameters are trained.
std::int64_t tensor_floor(PricePieces& pieces, const Plan& plan, const PriceFreedom& open) {
  const Job& job = pieces.job;
  const bool may_gather =
      plan.zero > 1 || std::ranges::any_of(open.zero, [](std::int64_t zero) { return zero > 1; });
  if (!framework_of(job.profile).holds_whole_weights ||
      trained_parameters(job) != TrainedParameters::kAll || may_gather || !open.precision.empty() ||
      !open.grad_dtype.empty() || !has_groups(job, plan)) {
    return 0;
  }
  Plan at = plan;
  choose_smallest_optimizer(open, at);
  choose_most_offload(open, at);
  at.zero = open.zero.empty() ? plan.zero : std::ranges::max(open.zero);
  at.dp_replicate = open.dp_replicate.empty() ? plan.dp_replicate : 1;
  pieces.begin(at);
  const std::int64_t weight = plan.precision == Precision::kFp8 ? 1 : bytes_of(DType::kBf16);
  const std::int64_t whole = weight + bytes_of(plan.grad_dtype);
  const std::int64_t divided =
      uses_muon(job) || at.offload.optimizer > 0 ? 0 : optimizer_bytes(job, at);
  const std::int64_t dense_ranks = at.zero > 0 ? dense_shard_size(job, at) : 1;
  const std::int64_t expert_ranks = at.zero > 0 ? expert_state_shards(job, at) : 1;
  std::int64_t most = 0;
  const std::vector<StageTensors>& classes = pieces.tensors(at).value.classes;
  for (const std::int64_t rank : ranks_of(at)) {
    const std::int64_t of = pieces.split().of_rank[static_cast<std::size_t>(rank)];
    const StageTensors& held = classes[static_cast<std::size_t>(of)];
    most = std::max(most, (held.dense + held.expert) * whole +
                              (held.dense / dense_ranks + held.expert / expert_ranks) * divided);
  }
  return most;
}

// By rank of ranks_of and phase.
const StateFloor& state_floor(PricePieces& pieces, const Plan& plan, std::size_t freedom) {
  PieceKey<8> key = floor_key(pieces, plan, freedom);
  key[7] = 0;  // the state knows no microbatch
  return pieces.state_floors
      .find(key,
            [&](StateFloor& floor) {
              const PriceFreedom& open = pieces.freedoms[freedom];
              for (PhaseBytes& rank : floor) { rank.fill(kNoBytes); }
              Plan at = plan;
              choose_smallest_optimizer(open, at);
              const bool adds_buffers = framework_of(pieces.job.profile).offload_adds_buffers;
              if (!adds_buffers) {
                choose_most_offload(open, at);
              }
              const auto visit = [&] {
                if (!has_groups(pieces.job, at)) {
                  return;
                }
                pieces.begin(at);
                const std::vector<StateBytes>& classes = pieces.state(at).classes;
                const SplitPiece& split = pieces.split();
                const std::array<std::int64_t, 3> ranks = ranks_of(at);
                for (std::size_t i = 0; i < ranks.size(); ++i) {
                  const std::int64_t of = split.of_rank[static_cast<std::size_t>(ranks[i])];
                  lower(floor[i], least_state(open, classes[static_cast<std::size_t>(of)]).alive);
                }
              };
              each(open.precision, at.precision, [&] {
                each(open.grad_dtype, at.grad_dtype, [&] {
                  each(open.zero, at.zero, [&] {
                    each(open.dp_replicate, at.dp_replicate, [&] {
                      each(adds_buffers ? open.offload : std::vector<Offload>{}, at.offload, visit);
                    });
                  });
                });
              });
            })
      .value;
}

// Activations and buffers of the size of a microbatch, by rank of ranks_of and phase. Buckets,
// which depend on how the state is kept, come on top.
StateFloor activation_floor(PricePieces& pieces, const Plan& plan, const PriceFreedom& open) {
  StateFloor floor;
  for (PhaseBytes& rank : floor) { rank.fill(kNoBytes); }
  Plan at = without_buckets(pieces.job, plan);
  const std::array<std::int64_t, 3> ranks = ranks_of(plan);
  each_block(pieces, open, at, [&] {
    each(open.recompute, at.recompute, [&] {
      pieces.begin(at);
      const ScheduleShape shape = pieces.shape(at);
      for (const RankActivations& held : pieces.activations(at, shape).ranks) {
        PhaseBytes bytes = held.buffers->alive;
        bytes[static_cast<std::size_t>(Phase::kForward)] +=
            std::max<std::int64_t>(held.actions.forward, 0);
        bytes[static_cast<std::size_t>(Phase::kBackward)] +=
            std::max<std::int64_t>(held.actions.backward, 0);
        bytes[static_cast<std::size_t>(Phase::kReduction)] +=
            std::max<std::int64_t>(held.actions.reduction, 0);
        for (std::size_t i = 0; i < ranks.size(); ++i) {
          if (ranks[i] == held.rank) {
            lower(floor[i], bytes);
          }
        }
      }
    });
  });
  return floor;
}

// Of one schedule.
MemoryFloor memory_floor_of(PricePieces& pieces, const Plan& plan, std::size_t freedom) {
  const StateFloor state = state_floor(pieces, plan, freedom);
  MemoryFloor floor;
  for (const PhaseBytes& rank : state) {
    floor.state_bytes = std::max(floor.state_bytes, std::ranges::max(rank));
  }
  floor.allocated_bytes = floor.state_bytes;
  const PriceFreedom& open = pieces.freedoms[freedom];
  if (floor.state_bytes == kNoBytes ||
      num_blocks(open) * num_values(open.recompute) > kMostActivations) {
    return floor;
  }
  const StateFloor activations = activation_floor(pieces, plan, pieces.freedoms[freedom]);
  for (std::size_t i = 0; i < state.size(); ++i) {
    for (std::size_t phase = 0; phase < state[i].size(); ++phase) {
      const bool none = activations[i][phase] == kNoBytes;
      floor.allocated_bytes = std::max(floor.allocated_bytes,
                                       none ? kNoBytes : state[i][phase] + activations[i][phase]);
    }
  }
  return floor;
}

}  // namespace

// Profiles whose state sees the microbatch, or that have a formula of their own, get none: what
// their plans have is known when they are priced.
MemoryFloor memory_floor(PriceTable& table, const Plan& plan, std::size_t freedom) {
  PricePieces& pieces = table.pieces();
  if (pieces.is_wide) {
    return {};
  }
  const PriceFreedom& open = pieces.freedoms[freedom];
  MemoryFloor floor{.state_bytes = kNoBytes, .allocated_bytes = kNoBytes};
  if (!can_be_valid(pieces, plan, open)) {
    return floor;
  }
  each_running_schedule(pieces, plan, open, [&](Plan& at) {
    const MemoryFloor of = memory_floor_of(pieces, at, freedom);
    floor.state_bytes = std::min(floor.state_bytes, of.state_bytes);
    floor.allocated_bytes = std::min(floor.allocated_bytes, of.allocated_bytes);
  });
  return floor;
}

// The first part of memory_floor, without its cost.
std::int64_t state_floor_bytes(PriceTable& table, const Plan& plan, std::size_t freedom,
                               std::int64_t limit_bytes) {
  PricePieces& pieces = table.pieces();
  if (pieces.is_wide) {
    return 0;
  }
  const PriceFreedom& open = pieces.freedoms[freedom];
  std::int64_t least = kNoBytes;
  if (!can_be_valid(pieces, plan, open)) {
    return least;
  }
  each_running_schedule(pieces, plan, open, [&](Plan& at) {
    std::int64_t fullest = tensor_floor(pieces, at, open);
    if (fullest <= limit_bytes) {
      for (const PhaseBytes& rank : state_floor(pieces, at, freedom)) {
        fullest = std::max(fullest, std::ranges::max(rank));
      }
    }
    least = std::min(least, fullest);
  });
  return least;
}

}  // namespace shardplan
