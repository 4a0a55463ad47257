// torchtitan's configurations.
#pragma once

#include <string>

#include "data/arguments/run_settings.h"

namespace shardplan {

RunSettings settings_from_toml(const std::string& text, const std::string& file);

}  // namespace shardplan
