// Why a run died, on one screen.
#pragma once

#include <string>

#include "tools/commands/why_oom.h"
#include "tools/screen/screen.h"

namespace shardplan {

std::string why_oom_screen(const Screen& screen, const WhyOomReport& report);

}  // namespace shardplan
