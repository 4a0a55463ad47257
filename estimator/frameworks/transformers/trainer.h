// A rank of transformers' Trainer, played from the model's loading on.
#pragma once

#include "estimator/frameworks/transformers/model.h"

namespace shardplan::transformers {

struct TrainerRun {
  std::vector<AllocationEvent> events;
  std::vector<eager::Tape::LabelStart> labels;
  std::vector<eager::Tape::MomentStart> moments;
  std::int64_t num_first_step = 0;  // events until the first step has ended
};

TrainerRun trainer_run(const Job& job, const Plan& plan, int steps);

}  // namespace shardplan::transformers
