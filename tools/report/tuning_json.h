// What of a model is trained, in the words of case lines.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "estimator/plan/job.h"

namespace shardplan {

// Members "adapters" and "quantization", where the job has any.
void add_tuning(nlohmann::ordered_json& json, const Job& job);

}  // namespace shardplan
