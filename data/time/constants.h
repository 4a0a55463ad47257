// The constants of the time model, as time/constants.json states them.
#pragma once

#include <string>

#include "data/read/json_reader.h"
#include "data/read/library.h"
#include "estimator/plan/time_constants.h"

namespace shardplan {

inline constexpr std::string_view kTimeConstantsPath = "time/constants.json";

// Reads every constant, no other.
TimeConstantsFile read_time_constants(const JsonValue& value, const std::string& file);

}  // namespace shardplan
