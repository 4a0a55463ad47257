// The answers of `why-oom`.
#pragma once

#include <string>

#include "tools/commands/why_oom.h"

namespace shardplan {

std::string why_oom_text(const WhyOomReport& report);
std::string why_oom_csv(const WhyOomReport& report);  // one row per match
std::string why_oom_json(const WhyOomReport& report);

}  // namespace shardplan
