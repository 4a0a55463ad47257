#include "tools/export/savings.h"

#include <algorithm>
#include <cmath>

#include "data/frameworks/framework.h"
#include "estimator/estimate.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::int64_t fullest_bytes(const MemoryEstimate& memory) {
  return memory.stages[static_cast<std::size_t>(memory.worst_stage)].device_used_bytes;
}

std::string with_sign(double value, const std::string& text) {
  return (value < 0 ? "-" : "+") + text;
}

}  // namespace

std::string cost_without(const ExportRequest& request, const Job& other_job,
                         const Plan& other_plan) {
  constexpr double kLeastGib = 0.005;   // what two decimals show
  constexpr double kLeastShare = 5e-4;  // likewise of a percentage's one
  if (!request.prediction.has_numbers() || why_invalid(other_job, other_plan)) {
    return "";
  }
  const std::int64_t more = fullest_bytes(estimate_memory(other_job, other_plan)) -
                            fullest_bytes(request.prediction.memory);
  const double own_s = request.prediction.time.total_s;
  const double slower = estimate_step_time(other_job, other_plan).total_s / own_s - 1;
  const double more_gib = static_cast<double>(more) / static_cast<double>(kGiB);
  std::string text;
  if (std::abs(more_gib) >= kLeastGib) {
    text = with_sign(more_gib, fixed(std::abs(more_gib), 2)) + " GiB";
  }
  if (std::abs(slower) >= kLeastShare) {
    text += text.empty() ? "step " : ", step ";
    text += with_sign(slower, fixed(100 * std::abs(slower), 1)) + " %";
  }
  return text.empty() ? "" : "without: " + text;
}

std::string cost_with_option(const ExportRequest& request, const std::string& option,
                             const std::string& word) {
  Job other = request.job();
  apply_option(other.profile, option, word, request.library);
  return cost_without(request, other, request.plan());
}

std::string assumed_mark(const ExportRequest& request, const std::string& name) {
  const auto has = [&name](const std::vector<std::string>& names) {
    return std::ranges::find(names, name) != names.end();
  };
  return has(request.question.given) || has(request.question.given_options) ? "" : "assumed";
}

std::string joined_comment(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

}  // namespace shardplan
