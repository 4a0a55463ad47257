// The program's name and version, as every JSON answer carries it.
#pragma once

namespace shardplan {

inline constexpr const char* kVersionText = "shardplan " SHARDPLAN_VERSION;

}  // namespace shardplan
