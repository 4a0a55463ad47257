// What a report says about the run's file that the question came from.
#pragma once

#include <cstdint>
#include <string>

#include "tools/options/question.h"
#include "tools/report/report.h"

namespace shardplan {

// How the settings of a run's file were taken: one line of counts, with every row under kRows.
std::string run_text(const GivenRun& run, Detail detail);
std::int64_t num_settings(const GivenRun& run, SettingEffect effect);

}  // namespace shardplan
