#include "tools/measure/calibration.h"

#include <algorithm>
#include <chrono>

#include "estimator/plan/units.h"
#include "tools/report/calibration.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::string today() {
  const auto now = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date(now);
  const auto two = [](unsigned number) {
    return std::string(number < 10 ? "0" : "") + std::to_string(number);
  };
  return std::to_string(static_cast<int>(date.year())) + "-" +
         two(static_cast<unsigned>(date.month())) + "-" + two(static_cast<unsigned>(date.day()));
}

}  // namespace

std::string gpu_file_of(const Options& options, const Library& library) {
  const std::string name = required_text(options, "gpu");
  return is_path(name) ? read_text_file(name)
                       : library.text_of("gpus/" + library.gpu(name).id + ".json");
}

SlowestGpu slowest_gpu(const std::vector<double>& flops_per_s) {
  constexpr double kStragglerShare = 0.95;  // GPUs of one host differ by 1 to 2 %
  SlowestGpu found;
  found.text = "large products on all GPUs at once, TFLOP/s:";
  for (const double rate : flops_per_s) { found.text.append(" ").append(fixed(rate / kTera, 1)); }
  const auto slowest = std::ranges::min_element(flops_per_s);
  found.gpu = slowest - flops_per_s.begin();
  std::string name = "GPU ";
  name += std::to_string(found.gpu);
  found.text += "; " + name + " is the slowest";
  std::vector<double> ordered = flops_per_s;
  std::ranges::sort(ordered);
  const double share = *slowest / ordered[ordered.size() / 2];
  if (share < kStragglerShare) {
    found.warning = name + " runs products at " + fixed(100 * share, 1) +
                    " % of the median GPU's rate: every step of all of them waits for it";
  }
  return found;
}

std::string calibration_source(const Arguments& arguments, const std::string& machine) {
  std::string text = "shardplan calibrate";
  for (const std::string& word : arguments) { text += " " + word; }
  return text + ", version " SHARDPLAN_VERSION ", " + today() + ": " + machine;
}

CalibrationFiles::CalibrationFiles(const Options& options) : gpu_(text_or(options, "out", "")) {
  if (given(options, "cluster-out")) {
    cluster_.emplace(text_or(options, "cluster-out", ""));
  }
}

void CalibrationFiles::write(const std::string& gpu_file, std::int64_t num_gpus,
                             const std::string& source) {
  gpu_.write(gpu_file);
  if (cluster_) {
    cluster_->write(calibrated_cluster(gpu_file, num_gpus, source));
    cluster_->commit();
  }
  gpu_.commit();
}

}  // namespace shardplan
