// A plan's price from memoised pieces. The same functions write estimate_memory's rows and
// estimate_step_time's parts.
#include "estimator/price/price.h"
#include "estimator/frameworks/framework.h"

#include <algorithm>

#include "estimator/answer/estimate_memory.h"
#include "estimator/price/pieces.h"

namespace shardplan {
namespace {

Price price_by_formula(const Job& job, const Plan& plan) {
  const MemoryEstimate estimate = estimate_memory(job, plan);
  const StageMemory& worst = estimate.stages.front();
  Price price;
  price.allocated_bytes = worst.allocated_bytes;
  price.allocated_stage = worst.pp_rank;
  price.device_used_bytes = worst.device_used_bytes;
  price.device_least_bytes = worst.device_used_bytes;
  return price;
}

// Only the ranks that can have the peak.
Price memory_price(PricePieces& pieces, const Plan& plan, const ScheduleShape& shape) {
  const AllocatorKind allocator = pieces.job.profile.allocator;
  const StatePiece& states = pieces.state(plan);
  const OutsidePiece& outside = pieces.outside(plan);
  Price price;
  price.allocated_bytes = -1;
  for (const RankActivations& rank : pieces.activations(plan, shape).ranks) {
    const StateSum state = {.one = states.classes[rank.stage_class], .other = *rank.buffers};
    const std::int64_t allocated = allocated_bytes(allocator, state, rank.actions);
    if (allocated > price.allocated_bytes) {
      price.allocated_bytes = allocated;
      price.allocated_stage = rank.rank;
    }
    const std::int64_t beside = rank.rank == 0                   ? outside.first
                                : rank.rank + 1 == plan.pp       ? outside.last
                                : rank.rank == outside.head_rank ? outside.head
                                                                 : outside.between;
    price.device_used_bytes = std::max(price.device_used_bytes,
                                       reserved_upper_bytes(allocator, state, allocated) + beside);
    price.device_least_bytes = std::max(price.device_least_bytes, allocated + beside);
  }
  return price;
}

}  // namespace

PriceTable::PriceTable(const Job& job) : pieces_(std::make_unique<PricePieces>(job)) {}
PriceTable::~PriceTable() = default;
PriceTable::PriceTable(PriceTable&&) noexcept = default;
PriceTable& PriceTable::operator=(PriceTable&&) noexcept = default;

const Job& PriceTable::job() const {
  return pieces_->job;
}

PriceTable build_price_table(const Job& job) {
  return PriceTable(job);
}

StepTime price_time(PricePieces& pieces, const Plan& plan, const ScheduleShape& shape) {
  return step_time_of(pieces.job, plan, shape.num_microbatches, pieces.work(plan, shape).step,
                      pieces.updates(plan));
}

Price price(PriceTable& table, const Plan& plan) {
  PricePieces& pieces = table.pieces();
  const Job& job = pieces.job;
  pieces.begin(plan);
  const ScheduleShape shape = pieces.shape(plan);
  Price price = framework_of(job.profile).formula != nullptr ? price_by_formula(job, plan)
                                                             : memory_price(pieces, plan, shape);
  const StepTime time = price_time(pieces, plan, shape);
  price.step_time_s = time.total_s;
  price.tokens_per_s_per_gpu = time.tokens_per_s_per_gpu;
  return price;
}

}  // namespace shardplan
