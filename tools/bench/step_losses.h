// Where a measured step loses time against its limit, by kind of work.
#pragma once

#include <string>
#include <vector>

#include "estimator/answer/step_account.h"
#include "tools/bench/step_gaps.h"
#include "validator/program/program.h"

namespace shardplan {

// Of one rank, on its compute stream: "product", "attention", "elementwise", "optimizer", exchanges
// that run there, and "waiting for" what stands in its gaps. Kinds as the account of a step has
// them; what it shows of communication, sends and the bubble was measured as waiting.
struct StepLoss {
  std::string kind = {};
  double measured_s = 0;
  double limit_s = 0;  // 0: nothing of it must be visible

  double lost_s() const { return measured_s - limit_s; }
};

// `limit` is step_account of the job without_losses, of the stage of this rank. Recomputation is
// part of the kinds in the program and a kind of its own in the limit. Measured seconds add up to
// the step, those of the limit to the limit; the largest loss first.
std::vector<StepLoss> step_losses(const Program& program, const std::vector<OperationTime>& times,
                                  const StepAccount& limit);

}  // namespace shardplan
