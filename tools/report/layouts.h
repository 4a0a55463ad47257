// The answers of `accuracy --layouts`.
#pragma once

#include <string>

#include "tools/accuracy/layouts.h"

namespace shardplan {

std::string layouts_text(const LayoutReport& report);
std::string layouts_csv(const LayoutReport& report);  // one row per group
std::string layouts_json(const LayoutReport& report);

}  // namespace shardplan
