#include "estimator/frameworks/deepspeed/outside.h"

#include <array>

#include "estimator/frameworks/deepspeed/moments.h"
#include "estimator/frameworks/pieces/communicators.h"

namespace shardplan::deepspeed {
namespace {

// DeepSpeed's data-parallel group is a clone of the world (utils/groups.py, _clone_world_group);
// init_process_group gets a device, so that both have a communicator, even of one rank
// (comm/torch.py, init_process_group). The engine leaves that of the world unused; a trainer around
// it, as Hugging Face's, gathers the loss over it. Ulysses exchanges in a group of its own.
std::array<Communicator, 3> communicators(const GroupGrid& grid) {
  const std::int64_t cp = grid.plan.cp;
  return {{{"world", grid.world, {.ring = true}},
           {"dp", grid.dp * cp, {.ring = true}},
           {"cp", cp, grid.all_peers(GroupKind::kCp), cp > 1}}};
}

}  // namespace

void add_outside_at_start(const Job& job, const Plan& plan, std::int64_t pp_rank,
                          OutsideParts& parts) {
  add_process(job, parts);
  add_communicators(job, communicators({.job = job, .plan = plan, .pp_rank = pp_rank}),
                    Creation::kAll, parts);
}

void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts) {
  add_outside_at_start(job, plan, pp_rank, parts);
  if (const std::int64_t managed = managed_bytes(job, plan); managed > 0) {
    parts.add({.component = Component::kOptimizer,
               .name = "optimizer.managed",
               .bytes = managed,
               .formula = "Nt/D: two paged moments of parts of 100,000 elements and more",
               .origin = Origin::kCounted});
  }
}

}  // namespace shardplan::deepspeed
