// A parsed config.json as text again.
#pragma once

#include <string>

#include "data/read/json_reader.h"

namespace shardplan {

std::string config_text(JsonValue config);

}  // namespace shardplan
