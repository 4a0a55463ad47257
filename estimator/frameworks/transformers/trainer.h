// A rank of transformers' Trainer, played from the model's loading on.
#pragma once

#include "estimator/frameworks/pieces/huggingface/model.h"

namespace shardplan::transformers {

PlayedRun trainer_run(const Job& job, const Plan& plan, int steps);

}  // namespace shardplan::transformers
