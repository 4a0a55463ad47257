// Time is a sum of minima as well: of the pipeline, and of what follows it.
#include "estimator/price/time_floor.h"

#include <algorithm>
#include <utility>

#include "estimator/answer/blocks.h"
#include "estimator/frameworks/framework.h"
#include "estimator/price/branch.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {
namespace {

// Combinations of a branch whose pipelines are timed one by one; of more, only compute counts.
constexpr std::size_t kMostPipelines = 4096;

// Plans of the branch, of one schedule, that differ in the pipeline's time.
std::size_t num_pipelines(const PriceFreedom& open) {
  return num_blocks(open) * num_values(open.rank_order);
}

// The open choices of ZeRO that times of blocks tell apart, of those that are alike the first;
// none: any will do.
std::vector<std::int64_t> zeros_seen_by_blocks(const PricePieces& pieces, const Plan& plan,
                                               const PriceFreedom& open) {
  const auto seen_by_time = framework_of(pieces.job.profile).sharding_seen_by_time;
  if (seen_by_time == nullptr) {
    return {};
  }
  const std::int64_t dp = data_parallel_size(pieces.job, plan);
  std::vector<std::int64_t> zeros;
  std::vector<std::int64_t> seen;
  Plan at = plan;
  each(open.zero, at.zero, [&] {
    const std::int64_t sharding = seen_by_time(pieces.job, at, dp);
    if (!open.zero.empty() && std::ranges::find(seen, sharding) == seen.end()) {
      seen.push_back(sharding);
      zeros.push_back(at.zero);
    }
  });
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
  const std::int64_t is_v = row_of(plan.schedule).places_in_v ? 1 : 0;
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
  const std::vector<std::int64_t> zeros = zeros_seen_by_blocks(pieces, at, open);
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
  const UpdateTimes& update = framework_of(pieces.job.profile).update;
  double least_s = kNoTime;
  Plan at = plan;
  each(open.zero, at.zero, [&] {
    const ReductionPiece& reductions = pieces.reductions(at).value;
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
  const bool counts_microbatches = !allowed_overlaps(pieces.job).reductions;
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

}  // namespace

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
