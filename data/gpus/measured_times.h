// The member "time" of a GPU file's measured part: rates that `calibrate --time` found.
#pragma once

#include <optional>
#include <string>

#include "data/read/json_reader.h"
#include "estimator/plan/cluster_spec.h"

namespace shardplan {

// Nothing where the member is absent or null. InputError for lists that do not ascend, grids with
// holes and rates that are not positive.
std::optional<MeasuredTimes> read_measured_times(ObjectReader& measured, const std::string& file);

}  // namespace shardplan
