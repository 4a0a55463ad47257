// Several clusters on one screen.
#pragma once

#include <string>

#include "tools/commands/sweep.h"
#include "tools/screen/screen.h"

namespace shardplan {

std::string sweep_screen(const Screen& screen, const SweepReport& report);

}  // namespace shardplan
