// Floors are sums of minima: of the state over the axes that change it, of the activations over
// theirs, of the pipeline's time, of what follows it. A sum of minima is no more than any sum.
#include "estimator/price_floor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "estimator/price_branch.h"

namespace shardplan {
namespace {

// Combinations of a branch whose pipelines are timed one by one; of more, only compute counts.
constexpr std::size_t kMostPipelines = 64;

// The same for activations: of more, only the state counts.
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

// What is left of a key once free axes are taken out of it.
PieceKey<8> floor_key(PricePieces& pieces, const Plan& plan, std::size_t freedom) {
  const PriceFreedom& open = pieces.freedoms[freedom];
  Plan decided = plan;
  const auto drop = [](const auto& values, auto& axis, auto neutral) {
    axis = values.empty() ? axis : neutral;
  };
  drop(open.zero, decided.zero, std::int64_t{0});
  drop(open.dp_replicate, decided.dp_replicate, std::int64_t{0});
  drop(open.precision, decided.precision, Precision::kFp32);
  drop(open.grad_dtype, decided.grad_dtype, DType::kFp32);
  drop(open.master_dtype, decided.master_dtype, DType::kFp32);
  drop(open.exp_avg_dtype, decided.exp_avg_dtype, DType::kFp32);
  drop(open.exp_avg_sq_dtype, decided.exp_avg_sq_dtype, DType::kFp32);
  drop(open.offload, decided.offload, Offload{});
  drop(open.rank_order, decided.rank_order, Plan{}.rank_order);
  std::int64_t order = 0;
  for (const Dimension dimension : decided.rank_order) {
    order = 4 * order + static_cast<std::int64_t>(dimension);
  }
  const std::int64_t offloaded =
      (decided.offload.activations ? 1 : 0) + (decided.offload.parameters ? 2 : 0);
  return {packed(static_cast<std::int64_t>(freedom), pieces.split(plan).number),
          packed(plan.tp, plan.cp),
          packed(plan.ep, plan.etp),
          packed(plan.dp, decided.dp_replicate),
          packed(order, 4 * decided.zero + offloaded),
          dtypes_number(decided),
          std::bit_cast<std::int64_t>(decided.offload.optimizer),
          plan.micro_batch};
}

// Offloading takes rows of the optimizer away and adds none.
void choose_most_offload(const PriceFreedom& open, Plan& plan) {
  if (!open.offload.empty()) {
    plan.offload = *std::ranges::max_element(open.offload, {}, &Offload::optimizer);
  }
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
              choose_most_offload(open, at);
              const auto visit = [&] {
                if (!has_groups(pieces.job, at)) {
                  return;
                }
                pieces.begin(at);
                const std::vector<StateBytes>& classes = pieces.state(at).classes;
                const SplitPiece& split = pieces.split(at).value;
                const std::array<std::int64_t, 3> ranks = ranks_of(at);
                for (std::size_t i = 0; i < ranks.size(); ++i) {
                  const std::int64_t of = split.of_rank[static_cast<std::size_t>(ranks[i])];
                  lower(floor[i], classes[static_cast<std::size_t>(of)].alive);
                }
              };
              each(open.precision, at.precision, [&] {
                each(open.grad_dtype, at.grad_dtype, [&] {
                  each(open.zero, at.zero,
                       [&] { each(open.dp_replicate, at.dp_replicate, visit); });
                });
              });
            })
      .value;
}

// Activations and buffers of the size of a microbatch, by rank of ranks_of and phase.
StateFloor activation_floor(PricePieces& pieces, const Plan& plan, const PriceFreedom& open) {
  StateFloor floor;
  for (PhaseBytes& rank : floor) { rank.fill(kNoBytes); }
  Plan at = plan;
  const std::array<std::int64_t, 3> ranks = ranks_of(plan);
  each_block(pieces, open, at, [&] {
    each(open.recompute, at.recompute, [&] {
      pieces.begin(at);
      const ScheduleShape shape = pieces.shape(at);
      for (const RankActivations& held : pieces.activations(at, shape).ranks) {
        PhaseBytes bytes = held.sequence.alive;
        bytes[static_cast<std::size_t>(Phase::kForward)] +=
            std::max<std::int64_t>(held.actions.forward, 0);
        bytes[static_cast<std::size_t>(Phase::kBackward)] +=
            std::max<std::int64_t>(held.actions.backward, 0);
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

std::size_t num_values(const auto& values) {
  return std::max<std::size_t>(values.size(), 1);
}

// Blocks of the branch that keep different activations.
std::size_t num_blocks(const PriceFreedom& open) {
  return num_values(open.micro_batch) * num_values(open.sequence_parallel) *
         num_values(open.cp_method) * num_values(open.precision);
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

// Plans of the branch that differ in the pipeline's time.
std::size_t num_pipelines(const PriceFreedom& open) {
  return num_blocks(open) * num_values(open.grad_dtype) * num_values(open.rank_order) *
         num_values(open.schedule);
}

// Kernels of the busiest rank, forward and backward, over all microbatches. Links and recomputation
// change nothing in it, and no pipeline is shorter.
double compute_floor(PricePieces& pieces, const Plan& plan, const PriceFreedom& open) {
  double floor_s = kNoTime;
  Plan at = plan;
  at.recompute = {};
  if (!open.dp_replicate.empty()) {
    at.dp_replicate = 1;
  }
  each_block(pieces, open, at, [&] {
    each(open.grad_dtype, at.grad_dtype, [&] {
      pieces.begin(at);
      const ScheduleShape shape = pieces.shape(at);
      double busiest_s = 0;
      for (const ChunkWork& rank : pieces.work(at, shape).ranks) {
        busiest_s = std::max(busiest_s, rank.blocks.forward_s + rank.blocks.backward_input_s +
                                            rank.blocks.backward_weight_s);
      }
      floor_s = std::min(floor_s, static_cast<double>(shape.num_microbatches) * busiest_s);
    });
  });
  return floor_s;
}

// Recomputation only adds work: an open choice counts as none.
double pipeline_floor(PricePieces& pieces, const Plan& plan, const PriceFreedom& open) {
  double floor_s = kNoTime;
  Plan at = plan;
  if (!open.dp_replicate.empty()) {
    at.dp_replicate = 1;
  }
  if (!open.recompute.empty()) {
    at.recompute = {};
  }
  each_block(pieces, open, at, [&] {
    each(open.grad_dtype, at.grad_dtype, [&] {
      each(open.rank_order, at.rank_order, [&] {
        pieces.begin(at);
        const ScheduleShape shape = pieces.shape(at);
        floor_s = std::min(floor_s, pieces.work(at, shape).pipeline.total_s);
      });
    });
  });
  return floor_s;
}

// Optimizer and communication after the pipeline, all of it hidden that may be.
double update_floor(PricePieces& pieces, const Plan& plan, std::size_t freedom) {
  const PriceFreedom& open = pieces.freedoms[freedom];
  PieceKey<8> key = floor_key(pieces, plan, freedom);
  key[7] = open.micro_batch.empty() ? plan.micro_batch : 0;
  return pieces.update_floors
      .find(
          key,
          [&](double& floor_s) {
            floor_s = kNoTime;
            Plan at = plan;
            choose_smallest_optimizer(open, at);
            const std::int64_t most =
                open.micro_batch.empty() ? at.micro_batch : std::ranges::max(open.micro_batch);
            const MicrobatchWork hides = {.forward_s = kNoTime, .backward_s = kNoTime};
            const auto visit = [&] {
              if (!has_groups(pieces.job, at)) {
                return;
              }
              pieces.begin(at);
              const std::int64_t microbatches = pieces.job.global_batch / (pieces.grid().dp * most);
              const SplitPiece& split = pieces.split(at).value;
              double slowest_s = 0;
              for (const std::int64_t rank : {std::int64_t{0}, at.pp - 1}) {
                const RankUpdate& update = pieces.updates(at)[split.steps.pipeline.rank_kind(rank)];
                slowest_s = std::max(
                    slowest_s,
                    exposed_data_parallel_s(pieces.job, at, update,
                                            std::max<std::int64_t>(microbatches, 1), hides) +
                        update.optimizer_s);
              }
              floor_s = std::min(floor_s, slowest_s);
            };
            each(open.precision, at.precision, [&] {
              each(open.grad_dtype, at.grad_dtype, [&] {
                each(open.rank_order, at.rank_order, [&] {
                  each(open.dp_replicate, at.dp_replicate, [&] {
                    each(open.zero, at.zero, [&] { each(open.offload, at.offload, visit); });
                  });
                });
              });
            });
          })
      .value;
}

// visit(plan) for every schedule of the branch that can run, the pieces set to it. The least share
// of dp_replicate stands for all.
template <class Visit>
void each_running_schedule(PricePieces& pieces, const Plan& plan, const PriceFreedom& open,
                           const Visit& visit) {
  Plan at = plan;
  if (!open.dp_replicate.empty()) {
    at.dp_replicate = 1;
  }
  each(open.schedule, at.schedule, [&] {
    if (runs_schedule(pieces, open, at)) {
      pieces.begin(at);
      visit(at);
    }
  });
}

}  // namespace

std::size_t add_freedom(PriceTable& table, PriceFreedom freedom) {
  std::vector<PriceFreedom>& freedoms = table.pieces().freedoms;
  freedoms.push_back(std::move(freedom));
  return freedoms.size() - 1;
}

// Profiles whose state sees the microbatch, or that have a formula of their own, get none.
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
std::int64_t state_floor_bytes(PriceTable& table, const Plan& plan, std::size_t freedom) {
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
    std::int64_t fullest = 0;
    for (const PhaseBytes& rank : state_floor(pieces, at, freedom)) {
      fullest = std::max(fullest, std::ranges::max(rank));
    }
    least = std::min(least, fullest);
  });
  return least;
}

TimeFloor time_floor(PriceTable& table, const Plan& plan, std::size_t freedom) {
  PricePieces& pieces = table.pieces();
  if (pieces.is_wide) {
    return {};
  }
  const PriceFreedom& open = pieces.freedoms[freedom];
  TimeFloor floor{.compute_s = kNoTime, .step_time_s = kNoTime};
  if (!can_be_valid(pieces, plan, open)) {
    return floor;
  }
  const bool times_pipelines = num_pipelines(open) <= kMostPipelines;
  each_running_schedule(pieces, plan, open, [&](Plan& at) {
    const double compute_s = compute_floor(pieces, at, open) * kRounding;
    const double before_s =
        times_pipelines ? pipeline_floor(pieces, at, open) * kRounding : compute_s;
    const double after_s = update_floor(pieces, at, freedom) * kRounding;
    floor.compute_s = std::min(floor.compute_s, compute_s);
    floor.step_time_s = std::min(floor.step_time_s, std::max(compute_s, before_s) + after_s);
  });
  return floor;
}

}  // namespace shardplan
