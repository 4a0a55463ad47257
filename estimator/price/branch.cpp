#include "estimator/price/branch.h"

#include <algorithm>
#include <bit>

#include "estimator/plan/layer_partition.h"

namespace shardplan {
namespace {

bool has_microbatches(const Job& job, const Plan& plan) {
  return job.global_batch % (data_parallel_size(job, plan) * plan.micro_batch) == 0;
}

// Every value makes rows smaller the fewer bytes it has, and adds none but those of
// StateBytes::widened; ends of blocks are by chance.
void choose_smallest(const std::vector<DType>& open, DType& axis) {
  if (!open.empty()) {
    axis = *std::ranges::min_element(open, {}, [](DType dtype) { return bytes_of(dtype); });
  }
}

}  // namespace

void choose_smallest_optimizer(const PriceFreedom& open, Plan& plan) {
  choose_smallest(open.master_dtype, plan.master_dtype);
  choose_smallest(open.exp_avg_dtype, plan.exp_avg_dtype);
  choose_smallest(open.exp_avg_sq_dtype, plan.exp_avg_sq_dtype);
}

StateBytes least_state(const PriceFreedom& open, const StateBytes& state) {
  StateBytes least = state;
  if (!open.master_dtype.empty() || !open.exp_avg_dtype.empty() || !open.exp_avg_sq_dtype.empty()) {
    for (std::int64_t& bytes : least.alive) { bytes -= state.block_ends; }
    least.alive[static_cast<std::size_t>(Phase::kOptimizer)] -= state.widened;
  }
  return least;
}

void choose_smallest_gradients(const PriceFreedom& open, Plan& plan) {
  choose_smallest(open.grad_dtype, plan.grad_dtype);
}

bool has_groups(const Job& job, const Plan& plan) {
  const std::int64_t world = job.cluster.world_size();
  const std::int64_t model_ranks = plan.tp * plan.cp * plan.pp;
  if (plan.dp == 0 && world % model_ranks != 0) {
    return false;
  }
  const std::int64_t dp = plan.dp > 0 ? plan.dp : world / model_ranks;
  const std::int64_t stage = plan.tp * plan.cp * dp;
  return dp > 0 && dp % plan.dp_replicate == 0 && stage % (plan.ep * plan.etp) == 0 &&
         stage / (plan.ep * plan.etp) % plan.dp_replicate == 0;
}

bool can_run(const PricePieces& pieces, const Plan& plan) {
  return has_microbatches(pieces.job, plan) &&
         std::ranges::none_of(pieces.block_rules, [&](const ValidityRule* rule) {
           return rule->broken(pieces.job, plan);
         });
}

bool runs_schedule(const PricePieces& pieces, const PriceFreedom& open, Plan at) {
  bool runs = false;
  each_microbatch(open, at, [&] { runs = runs || can_run(pieces, at); });
  return runs;
}

bool can_be_valid(const PricePieces& pieces, const Plan& plan, const PriceFreedom& open) {
  Plan at = plan;
  at.dp_replicate = open.dp_replicate.empty() ? plan.dp_replicate : 1;
  return has_groups(pieces.job, at) && !layers_per_chunk(pieces.job, at).empty() &&
         std::ranges::none_of(pieces.split_rules, [&](const ValidityRule* rule) {
           return rule->broken(pieces.job, at);
         });
}

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

}  // namespace shardplan
