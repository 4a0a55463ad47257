// Floors are sums of minima: of the state over the axes that change it, of the activations over
// theirs, of the pipeline's time, of what follows it. A sum of minima is no more than any sum.
#include "estimator/price/floor.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "estimator/answer/blocks.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/price/branch.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {
namespace {

// Combinations of a branch whose pipelines are timed one by one; of more, only compute counts.
constexpr std::size_t kMostPipelines = 4096;

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

bool opens_same_state(const PriceFreedom& one, const PriceFreedom& other) {
  const auto axes = [](const PriceFreedom& open) {
    return std::tie(open.zero, open.dp_replicate, open.precision, open.grad_dtype,
                    open.master_dtype, open.exp_avg_dtype, open.exp_avg_sq_dtype, open.offload,
                    open.rank_order);
  };
  return axes(one) == axes(other);
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
  const std::int64_t level = static_cast<std::int64_t>(pieces.state_freedoms[freedom]);
  return {packed(level, pieces.split_piece->number),
          packed(plan.tp, plan.cp),
          packed(plan.ep, plan.etp),
          packed(plan.dp, decided.dp_replicate),
          packed(order, 4 * decided.zero + offloaded),
          dtypes_number(decided),
          std::bit_cast<std::int64_t>(decided.offload.optimizer),
          plan.micro_batch};
}

// Megatron-core's takes rows of the optimizer away and adds none.
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

// Weights, gradients and optimizer state of the fullest of ranks_of, where Megatron-core keeps the
// first two whole, that is but for FSDP: what its start-up leaves in the allocator is not replayed
// for them. 0: not so here.
std::int64_t tensor_floor(PricePieces& pieces, const Plan& plan, const PriceFreedom& open) {
  const Job& job = pieces.job;
  const bool is_fsdp =
      plan.zero > 1 || std::ranges::any_of(open.zero, [](std::int64_t zero) { return zero > 1; });
  if (!is_megatron(job.profile.memory_model) || is_fsdp || !open.precision.empty() ||
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
              const bool adds_buffers = pieces.job.profile.memory_model == MemoryModel::kDeepspeed;
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

// Plans of the branch, of one schedule, that differ in the pipeline's time.
std::size_t num_pipelines(const PriceFreedom& open) {
  return num_blocks(open) * num_values(open.rank_order);
}

// FSDP changes the blocks of torchtitan and of Megatron-core (what its products add to, its hooks),
// other choices of ZeRO do not: of those that are alike the first.
std::vector<std::int64_t> zeros_seen_by_blocks(const Job& job, const PriceFreedom& open) {
  const bool is_titan = job.profile.memory_model == MemoryModel::kTorchtitan;
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    return open.zero;
  }
  if (!is_titan && job.profile.memory_model != MemoryModel::kMegatron) {
    return {};
  }
  const auto sharding = [&](std::int64_t zero) { return zero < (is_titan ? 3 : 2) ? 0 : zero; };
  std::vector<std::int64_t> zeros;
  for (const std::int64_t zero : open.zero) {
    if (std::ranges::find(zeros, sharding(zero), sharding) == zeros.end()) {
      zeros.push_back(zero);
    }
  }
  return zeros;
}

// Before what follows the pipeline, of one schedule.
struct PipelineFloor {
  double compute_s = kNoTime;
  double total_s = kNoTime;
};

// Of the open orders of ranks the first of those whose groups lie on the same links: work knows
// nothing else of an order.
const std::vector<RankOrder>& orders_seen_by_work(PricePieces& pieces, const Plan& plan,
                                                  std::size_t freedom) {
  if (pieces.freedoms[freedom].rank_order.empty()) {
    return pieces.freedoms[freedom].rank_order;
  }
  const std::int64_t is_v = plan.schedule == Schedule::kZbv ? 1 : 0;
  return pieces.order_pieces
      .find({packed(plan.tp, plan.cp), packed(plan.ep, plan.etp), packed(plan.pp, plan.dp),
             packed(plan.dp_replicate, 2 * static_cast<std::int64_t>(freedom) + is_v)},
            [&](std::vector<RankOrder>& orders) {
              orders.clear();
              std::vector<std::pair<std::int64_t, std::int64_t>> seen;
              Plan at = plan;
              each(pieces.freedoms[freedom].rank_order, at.rank_order, [&] {
                pieces.begin(at);
                const std::pair links(pieces.grid().links, pieces.grid().pp_links);
                if (std::ranges::find(seen, links) == seen.end()) {
                  seen.push_back(links);
                  orders.push_back(at.rank_order);
                }
              });
            })
      .value;
}

// compute_s: kernels of the busiest rank, forward and backward, over all microbatches. Links and
// recomputation change nothing in it, and no pipeline is shorter. Recomputation only adds work: an
// open choice counts as none. Gradients of fewer bytes only take less, but where units reduce
// buckets: their type decides whether products add to them.
PipelineFloor pipeline_floor(PricePieces& pieces, const Plan& plan, std::size_t freedom) {
  const PriceFreedom& open = pieces.freedoms[freedom];
  PipelineFloor floor;
  const bool times_pipelines = num_pipelines(open) <= kMostPipelines;
  Plan at = plan;
  at.recompute = times_pipelines && open.recompute.empty() ? plan.recompute : Recompute{};
  at.dp_replicate = open.dp_replicate.empty() ? plan.dp_replicate : 1;
  choose_smallest_gradients(open, at);
  const std::vector<RankOrder>& orders =
      times_pipelines ? orders_seen_by_work(pieces, at, freedom) : open.rank_order;
  const auto of_zero = [&] {
    const auto visit = [&] {
      pieces.begin(at);
      const ScheduleShape shape = pieces.shape(at);
      const WorkPiece& work = pieces.work(at, shape);
      const double compute_s = static_cast<double>(shape.num_microbatches) * work.busiest_s;
      floor.compute_s = std::min(floor.compute_s, compute_s);
      floor.total_s = std::min(floor.total_s, times_pipelines ? work.pipeline_s : compute_s);
    };
    if (times_pipelines) {
      each(orders, at.rank_order, visit);
    } else {
      visit();
    }
  };
  const auto of_gradients = [&] {
    if (gathers_by_unit(pieces.job, at)) {
      each(open.grad_dtype, at.grad_dtype, of_zero);
    } else {
      of_zero();
    }
  };
  const std::vector<std::int64_t> zeros = zeros_seen_by_blocks(pieces.job, open);
  each_block(pieces, open, at, [&] { each(zeros, at.zero, of_gradients); });
  return floor;
}

// Optimizer and communication after the pipeline of one choice of groups and dtypes, all of it
// hidden that may be: the least over the ways to keep the state.
double least_update_s(PricePieces& pieces, const Plan& plan, const PriceFreedom& open,
                      std::int64_t microbatches) {
  constexpr MicrobatchWork kHides = {
      .forward_s = kNoTime, .backward_s = kNoTime, .host_s = kNoTime};
  pieces.begin(plan);
  const PipelineLayout& ranks = pieces.split().steps.pipeline;
  const ReductionPiece& reductions = pieces.reductions(plan).value;
  const UpdateTimes& update = framework_of(pieces.job.profile).update;
  double least_s = kNoTime;
  Plan at = plan;
  each(open.zero, at.zero, [&] {
    const std::array<std::size_t, 2> ends = {ranks.rank_kind(0), ranks.rank_kind(at.pp - 1)};
    each(open.offload, at.offload, [&] {
      double slowest_s = 0;
      for (const std::size_t end : ends) {
        const double exposed_s = exposed_data_parallel_s(
            pieces.job, at, update, reductions.ranks[end], microbatches, kHides);
        slowest_s = std::max(slowest_s,
                             exposed_s + optimizer_s(pieces.job, at, update, pieces.grid().groups,
                                                     reductions.held[end]));
      }
      least_s = std::min(least_s, slowest_s);
    });
  });
  return least_s;
}

double update_floor(PricePieces& pieces, const Plan& plan, std::size_t freedom) {
  const PriceFreedom& open = pieces.freedoms[freedom];
  // Where reductions cannot hide, every microbatch may have one: the fewest of the branch count.
  const bool counts_microbatches = !pieces.job.profile.overlap_grad_reduce;
  const std::int64_t most =
      open.micro_batch.empty() ? plan.micro_batch : std::ranges::max(open.micro_batch);
  PieceKey<8> key = floor_key(pieces, plan, freedom);
  key[7] = counts_microbatches ? most : 0;
  return pieces.update_floors
      .find(key,
            [&](double& floor_s) {
              floor_s = kNoTime;
              Plan at = plan;
              choose_smallest_optimizer(open, at);
              const auto visit = [&] {
                if (!has_groups(pieces.job, at)) {
                  return;
                }
                const std::int64_t fewest =
                    counts_microbatches
                        ? pieces.job.global_batch / (data_parallel_size(pieces.job, at) * most)
                        : 1;
                floor_s = std::min(
                    floor_s, least_update_s(pieces, at, open, std::max<std::int64_t>(fewest, 1)));
              };
              each(open.precision, at.precision, [&] {
                each(open.grad_dtype, at.grad_dtype, [&] {
                  each(open.rank_order, at.rank_order,
                       [&] { each(open.dp_replicate, at.dp_replicate, visit); });
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
  PricePieces& pieces = table.pieces();
  const auto same = std::ranges::find_if(
      pieces.freedoms, [&](const PriceFreedom& other) { return opens_same_state(freedom, other); });
  pieces.state_freedoms.push_back(static_cast<std::size_t>(same - pieces.freedoms.begin()));
  pieces.freedoms.push_back(std::move(freedom));
  return pieces.freedoms.size() - 1;
}

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

// The time of every profile is made of the same pieces.
TimeFloor time_floor(PriceTable& table, const Plan& plan, std::size_t freedom) {
  PricePieces& pieces = table.pieces();
  const PriceFreedom& open = pieces.freedoms[freedom];
  TimeFloor floor{.compute_s = kNoTime, .step_time_s = kNoTime};
  if (!can_be_valid(pieces, plan, open)) {
    return floor;
  }
  each_running_schedule(pieces, plan, open, [&](Plan& at) {
    const PipelineFloor before = pipeline_floor(pieces, at, freedom);
    const double after_s = update_floor(pieces, at, freedom) * kRounding;
    const double compute_s = before.compute_s * kRounding;
    floor.compute_s = std::min(floor.compute_s, compute_s);
    floor.step_time_s =
        std::min(floor.step_time_s, std::max(compute_s, before.total_s * kRounding) + after_s);
  });
  return floor;
}

}  // namespace shardplan
