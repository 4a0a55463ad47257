#include "estimator/frameworks/deepspeed/timeline.h"

#include <algorithm>
#include <memory>

#include "estimator/frameworks/deepspeed/flat.h"
#include "estimator/frameworks/deepspeed/liger.h"
#include "estimator/frameworks/deepspeed/partitioned.h"

namespace shardplan::deepspeed {
namespace {

// The second step meets the optimizer's state in the cache that the first has left, the third what
// the second has left; the second microbatch of a step meets what the first keeps, later ones
// repeat it.
constexpr std::int64_t kMicrobatches = 2;

std::unique_ptr<DeepspeedZero> zero_of(const Job& job, const Plan& plan, std::int64_t rank,
                                       eager::Tape& tape) {
  if (plan.zero == 3) {
    return std::make_unique<PartitionedZero>(job, plan, tape);
  }
  return std::make_unique<FlatZero>(job, plan, rank, tape);
}

std::unique_ptr<EagerLlama> model_of(const Job& job, const Plan& plan, const LlamaSizes& sizes,
                                     eager::Tape& tape, DeepspeedZero& zero) {
  const bool checkpoints = plan.recompute.granularity == RecomputeGranularity::kFull;
  if (uses_liger(job)) {
    return std::make_unique<LigerLlama>(job, sizes, checkpoints, tape, zero);
  }
  return std::make_unique<EagerLlama>(sizes, checkpoints, tape, zero);
}

}  // namespace

PlayedRun deepspeed_run(const Job& job, const Plan& plan, std::int64_t rank, int steps) {
  eager::Tape tape(job.profile.fixed_workspace_bytes);
  const std::unique_ptr<DeepspeedZero> zero = zero_of(job, plan, rank, tape);
  const LlamaSizes sizes(job, plan);
  const std::unique_ptr<EagerLlama> model = model_of(job, plan, sizes, tape, *zero);
  const std::int64_t microbatches = std::min(num_microbatches(job, plan), kMicrobatches);
  PlayedRun run;
  tape.begin(MomentKind::kStartUp);
  zero->build();
  for (int step = 0; step < steps; ++step) {
    for (std::int64_t i = 0; i < microbatches; ++i) {
      zero->begin_microbatch(i + 1 == microbatches);
      model->forward();
      model->backward();
      tape.begin(MomentKind::kReduction);
      zero->end_backward();
    }
    tape.begin(MomentKind::kOptimizer);
    zero->step();
    run.num_first_step = step == 0 ? tape.num_events() : run.num_first_step;
  }
  run.events = tape.take_events();
  run.labels = tape.take_labels();
  run.moments = tape.take_moments();
  return run;
}

std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan, std::int64_t rank,
                                      int steps) {
  return deepspeed_run(job, plan, rank, steps).events;
}

}  // namespace shardplan::deepspeed
