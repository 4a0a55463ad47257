// Results of a run on GPUs, as a case line tells them.
#pragma once

#include <string>

#include "data/read/json_reader.h"
#include "estimator/plan/measurement.h"

namespace shardplan {

Measurement read_measured(const JsonValue& value, const std::string& file);

}  // namespace shardplan
