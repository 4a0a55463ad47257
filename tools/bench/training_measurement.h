// Steps of one training case on the GPUs of this machine: what they take, and where it goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "tools/bench/training_options.h"
#include "tools/bench/training_table.h"

namespace shardplan {

struct TrainingQuestion {
  TrainingCase row;
  Case read;
  std::optional<Job> best;  // without losses; nothing without measured rates
};

double seconds_since(std::chrono::steady_clock::time_point begin);
void measure_training(const TrainingQuestion& question, const TrainingOptions& options,
                      std::int64_t num_programs, GpuSensors& sensors, TrainingResult& result);

}  // namespace shardplan
