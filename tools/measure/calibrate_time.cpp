#include "tools/measure/calibrate_time.h"

#include <algorithm>

#include "data/read/library.h"
#include "tools/measure/calibration.h"
#include "tools/measure/sustained_gemm.h"
#include "tools/options/options.h"
#include "tools/options/question.h"
#include "tools/report/calibration_time.h"
#include "tools/report/output.h"
#include "validator/cuda/calibration.h"

namespace shardplan {
namespace {

// FLOP/s by GPU of one large product, all at once.
std::vector<double> rates_at_once(const TimeCalibration& calibration) {
  std::vector<double> rates;
  for (const SustainedRate& rate :
       sustained_on_gpus({}, calibration.warm_up_s, calibration.num_gpus)) {
    rates.push_back(rate.settled_flops_per_s);
  }
  return rates;
}

}  // namespace

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
  std::string machine = calibrated_machine();
  if (calibration.num_gpus > 1) {
    const SlowestGpu slowest = slowest_gpu(rates_at_once(calibration));
    print_message(slowest.text);
    if (!slowest.warning.empty()) {
      print_message("warning: " + slowest.warning);
    }
    calibration.device = slowest.gpu;
    machine += ", " + slowest.text;
  }
  MeasuredTimes times = measure_times(
      calibration, [](const std::string& part) { print_message("measured: " + part); });
  times.source = calibration_source(arguments, machine);
  files.write(with_measured_times(file, times), calibration.num_gpus, times.source);
  return ExitCode::kOk;
}

}  // namespace shardplan
