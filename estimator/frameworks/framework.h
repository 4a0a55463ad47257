// What the model asks of a training framework. Nothing outside estimator/frameworks knows one by
// name.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "estimator/ledger/stage_pieces.h"
#include "estimator/plan/job.h"
#include "estimator/plan/memory_estimate.h"
#include "estimator/validity/validity.h"

namespace shardplan {

// One row of functions and tables a framework. Functions of plans get valid ones only.
struct Framework {
  // Which plans it refuses, in the order in which the rules are tried.
  std::span<const ValidityRule> (*rules)();

  // A closed formula in place of rows. What it says to fit is a share of the nominal capacity.
  MemoryEstimate (*formula)(const Job& job, const Plan& plan) = nullptr;
  // Whether the tensors of every data-parallel rank are known apart; none: never.
  bool (*knows_data_ranks)(const Plan& plan) = nullptr;

  // What the numbers of an estimate rest on; none: nothing to say.
  void (*add_assumptions)(const Job& job, const Plan& plan, const PlanPieces& pieces,
                          std::vector<Assumption>& assumptions) = nullptr;
  // Moments and tensors outside the model, by name; none with a formula.
  std::vector<std::string> (*not_counted)(const FrameworkProfile& profile) = nullptr;
};

const Framework& framework_of(const FrameworkProfile& profile);

}  // namespace shardplan
