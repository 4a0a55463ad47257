#include "estimator/frameworks/nanotron/outside.h"

#include <array>

#include "estimator/frameworks/pieces/communicators.h"

namespace shardplan::nanotron {
namespace {

// Groups of ParallelContext (nanotron parallel/context.py), of which those of equal ranks are one,
// beside torch's default group and one more of all ranks. Each runs a collective: barriers, counts
// of parameters over tp and over pp, also where that is the rank alone, the norm over tp and pp,
// the loss over dp (trainer.py); tied weights have a group of their ranks
// (parallel/tied_parameters.py).
std::array<Communicator, 10> communicators(const GroupGrid& grid) {
  const Plan& plan = grid.plan;
  const bool alone = plan.tp == 1 || plan.pp == 1 || grid.dp == 1;
  return {{
      {"default", grid.world, {.ring = true}},
      {"world", grid.world, {.ring = true}},
      {"tp", plan.tp, {.ring = true}, plan.tp > 1},
      {"dp", grid.dp, {.ring = true}, grid.dp > 1},
      {"pp", plan.pp, with_ring(grid.pipeline()), plan.pp > 1},
      grid.previous_stage(),
      grid.next_stage(),
      {"tp_pp", plan.tp * plan.pp, {.ring = true}, plan.tp > 1 && plan.pp > 1},
      {"embedding", 2, {.ring = true}, plan.pp > 2 && grid.embedding_is_shared()},
      {"alone", 1, {.ring = true}, alone},
  }};
}

}  // namespace

void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts) {
  add_process(job, parts);
  add_communicators(
      job, communicators({.job = job, .plan = plan, .pp_rank = pp_rank, .sends_singly = true}),
      Creation::kAll, parts);
}

}  // namespace shardplan::nanotron
