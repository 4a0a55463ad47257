#include "tools/calibrate_time.h"

#include <algorithm>

#include "data/library.h"
#include "tools/calibration.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/question.h"
#include "validator/cuda_calibration.h"

namespace shardplan {

ExitCode run_time_calibration(const Arguments& arguments) {
  const Options options = parse_options("calibrate", arguments);
  const Library library = library_of(options);
  const std::string file = gpu_file_of(options, library);
  CalibrationFiles files(options);
  TimeCalibration calibration;
  const std::int64_t here = num_gpus_here();
  calibration.num_gpus = count_or(options, "gpus", std::max<std::int64_t>(1, here));
  if (calibration.num_gpus > here) {
    throw EnvironmentError("calibrate: --gpus: found " + std::to_string(here) +
                           " GPUs here, expected at least " + std::to_string(calibration.num_gpus));
  }
  MeasuredTimes times = measure_times(
      calibration, [](const std::string& part) { print_message("measured: " + part); });
  times.source = calibration_source(arguments, calibrated_machine());
  files.write(with_measured_times(file, times), calibration.num_gpus, times.source);
  return ExitCode::kOk;
}

}  // namespace shardplan
