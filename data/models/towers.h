// The tower for pictures or sound of a configuration around a text model.
#pragma once

#include <string>

#include "data/read/json_reader.h"
#include "estimator/plan/tower_spec.h"

namespace shardplan {

// The tower of a whole config.json of that model_type; it has no kind where its class is not
// described, or the file does not have its sizes. InputError for sizes out of range.
TowerSpec read_tower(const JsonValue& config, const std::string& model_type,
                     const std::string& file);

}  // namespace shardplan
