#include "estimator/frameworks/transformers/outside.h"

#include <array>

#include "estimator/frameworks/pieces/communicators.h"

namespace shardplan::transformers {

// One process group: DDP and FSDP2's mesh have all ranks (accelerate 1.15 state.py PartialState,
// accelerator.py). A process by itself makes none.
void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts) {
  add_process(job, parts);
  const GroupGrid grid = {.job = job, .plan = plan, .pp_rank = pp_rank};
  const std::array<Communicator, 1> world = {
      {{"world", grid.world, {.ring = true}, grid.world > 1}}};
  add_communicators(job, world, Creation::kAll, parts);
}

SeenByOutside seen_by_outside(const Job& /*job*/, const Plan& /*plan*/) {
  return {};
}

}  // namespace shardplan::transformers
