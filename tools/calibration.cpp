#include "tools/calibration.h"

#include <chrono>

#include "tools/question.h"

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
