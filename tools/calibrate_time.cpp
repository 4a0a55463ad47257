#include "tools/calibrate_time.h"

#include <algorithm>
#include <chrono>

#include "data/library.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/question.h"
#include "validator/cuda_calibration.h"

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

std::string command_line(const Arguments& arguments) {
  std::string text = "shardplan calibrate";
  for (const std::string& word : arguments) { text += " " + word; }
  return text;
}

}  // namespace

ExitCode run_time_calibration(const Arguments& arguments) {
  const Options options = parse_options("calibrate", arguments);
  const Library library = library_of(options);
  const std::string name = required_text(options, "gpu");
  const std::string file = is_path(name)
                               ? read_text_file(name)
                               : library.text_of("gpus/" + library.gpu(name).id + ".json");
  Output output(text_or(options, "out", ""));
  TimeCalibration calibration;
  const std::int64_t here = num_gpus_here();
  calibration.num_gpus = count_or(options, "gpus", std::max<std::int64_t>(1, here));
  if (calibration.num_gpus > here) {
    throw EnvironmentError("calibrate: --gpus: found " + std::to_string(here) +
                           " GPUs here, expected at least " + std::to_string(calibration.num_gpus));
  }
  MeasuredTimes times = measure_times(
      calibration, [](const std::string& part) { print_message("measured: " + part); });
  times.source = command_line(arguments) + ", version " SHARDPLAN_VERSION ", " + today() + ": " +
                 calibrated_machine();
  output.write(with_measured_times(file, times));
  output.commit();
  return ExitCode::kOk;
}

}  // namespace shardplan
