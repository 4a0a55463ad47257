// Advice on one screen: the plan's verdict, the changes that help, the command of the first.
#pragma once

#include <string>

#include "tools/commands/advise.h"
#include "tools/screen/screen.h"

namespace shardplan {

std::string advise_screen(const Screen& screen, const AdviseReport& report);

}  // namespace shardplan
