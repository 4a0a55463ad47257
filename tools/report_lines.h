// Lines that answers for people share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/job.h"

namespace shardplan {

// "cluster      8 x H200": the label in a column of its own.
std::string label_line(std::string_view label, const std::string& text);

// Model, cluster and framework.
std::string job_lines(const Job& job);

// How the global batch is met: microbatches of each rank.
std::string batch_line(const Job& job, const Plan& plan);

// The step, its speed, and the share of each of its parts.
std::string time_lines(const StepTime& time);

// A title and its items below; "" if there are none.
std::string list_lines(const std::string& title, const std::vector<std::string>& items);

}  // namespace shardplan
