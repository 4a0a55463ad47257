// The numbers that a step rests on, with where each comes from.
#pragma once

#include <vector>

#include "data/read/library.h"
#include "data/read/provenance.h"
#include "estimator/answer/step_numbers.h"

namespace shardplan {

struct StatedNumber {
  StepNumber number;
  Provenance provenance;
};

// `library`: from which the job's GPU and profile were read.
std::vector<StatedNumber> stated_numbers(const Job& job, const Plan& plan, const Library& library);

}  // namespace shardplan
