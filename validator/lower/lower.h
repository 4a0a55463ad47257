// Job + Plan + rank -> Program. Small passes: weights, blocks, pipeline schedule, reductions,
// update.
//
// What it knows so far: Llama models, dense or with experts (ep and expert tp over ranks that the
// other dimensions use, too); tp with and without sequence parallelism, pp with GPipe, 1F1B,
// interleaved 1F1B and zero bubble H1, dp with ZeRO 0 to 3 and hybrid sharding, cp by
// all-gather of keys and values or by a ring, over zigzag chunks, every recompute choice; bf16, and
// fp8 without experts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimator/plan/job.h"
#include "estimator/plan/plan.h"
#include "validator/program/program.h"

namespace shardplan {

class ProgramBuilder;

struct Hyperparameters {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double adam_epsilon = 1e-8;
  double weight_decay = 0.1;       // of matrices; norms do not decay
  double max_gradient_norm = 1.0;  // infinity: no clipping
  double rms_epsilon = 1e-5;
  double rope_theta = 10000;
  double aux_coefficient = 0.01;  // of the routers' load-balancing loss
};

// Nothing, or the field whose value has no lowering, with the value: "plan.zero: 3".
std::optional<std::string> why_not_lowered(const Job& job, const Plan& plan);

// Of a valid plan (why_invalid). Throws std::logic_error for one that is not lowered.
Program lower(const Job& job, const Plan& plan, std::int64_t rank,
              const Hyperparameters& hyperparameters);
// The programs of all ranks.
std::vector<Program> lower_all(const Job& job, const Plan& plan,
                               const Hyperparameters& hyperparameters = {});
// That of one rank with a builder of the caller, which is empty.
Program lower_with(ProgramBuilder& builder, const Job& job, const Plan& plan, std::int64_t rank,
                   const Hyperparameters& hyperparameters);

}  // namespace shardplan
