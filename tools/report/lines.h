// What answers share: lines for people, the parts of a step.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/plan/job.h"

namespace shardplan {

// What StepTime::total_s is the sum of, in the order of reports.
struct StepTimePart {
  std::string_view name;
  double StepTime::*seconds;
};
inline constexpr std::array<StepTimePart, 10> kStepTimeParts = {{
    {.name = "compute", .seconds = &StepTime::compute_s},
    {.name = "recompute", .seconds = &StepTime::recompute_s},
    {.name = "exposed_tp", .seconds = &StepTime::exposed_tp_s},
    {.name = "exposed_cp", .seconds = &StepTime::exposed_cp_s},
    {.name = "exposed_ep", .seconds = &StepTime::exposed_ep_s},
    {.name = "exposed_pp", .seconds = &StepTime::exposed_pp_s},
    {.name = "exposed_dp", .seconds = &StepTime::exposed_dp_s},
    {.name = "bubble", .seconds = &StepTime::bubble_s},
    {.name = "optimizer", .seconds = &StepTime::optimizer_s},
    {.name = "host", .seconds = &StepTime::host_s},
}};

// "cluster      8 x H200": the label in a column of its own.
std::string label_line(std::string_view label, const std::string& text);

// Model, cluster and framework.
std::string job_lines(const Job& job);

// How the global batch is met: microbatches of each rank.
std::string batch_line(const Job& job, const Plan& plan);

// The step, its speed, and the share of each of its parts.
// Under a table in which the MFU of some plans is of another peak; else nothing.
std::string mfu_note(bool has_fp8_plans);

// MFU is of the dense peak of the plan's products.
std::string time_lines(const StepTime& time);

// "94.07 GiB left", "3.20 GiB over the card".
std::string left_words(std::int64_t left_bytes);

// A title and its items below; "" if there are none.
std::string list_lines(const std::string& title, const std::vector<std::string>& items);

}  // namespace shardplan
