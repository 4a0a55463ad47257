// The answers of `why-oom`.
#pragma once

#include <string>

#include "tools/commands/why_oom.h"

namespace shardplan {

// Parts of the answer, in lines of any length, indented where they belong to a failure.
std::string oom_verdict(const WhyOomReport& report);      // whether the estimate agrees
std::string oom_absence(const WhyOomReport& report);      // a log without a message
std::string oom_settings(const WhyOomReport& report);     // the first change in its files
std::string oom_headline(const OomDiagnosis& diagnosis);  // who could not allocate what, and when
std::string oom_held(const OomDiagnosis& diagnosis, const WhyOomReport& report);
std::string oom_causes(const OomDiagnosis& diagnosis, const WhyOomReport& report);
std::string oom_eager(const OomDiagnosis& diagnosis, const WhyOomReport& report);

std::string why_oom_text(const WhyOomReport& report);
std::string why_oom_csv(const WhyOomReport& report);  // one row per match
std::string why_oom_json(const WhyOomReport& report);

}  // namespace shardplan
