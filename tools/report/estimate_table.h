// An estimate for people: verdict first, GiB, what the answer rests on.
#pragma once

#include <string>
#include <vector>

#include "tools/report/report.h"
#include "tools/report/terminal.h"

namespace shardplan {

std::string estimate_text(const EstimateReport& report, const Paint& paint);

// "tp 8  pp 2  dp 4 ...": fields whose value is the framework's or shardplan's default end in '*'.
std::string plan_words(const EstimateReport& report);

// What is taken for granted: what decides stands first, whole; the others stand together, by who
// has chosen them.
std::string assumption_lines(const std::vector<StatedAssumption>& assumptions, const Job& job);

// What --find-max found, and what the next value breaks.
std::vector<std::string> maximum_words(const Maximum& maximum);

}  // namespace shardplan
