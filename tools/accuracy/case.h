// One measured run against its prediction.
#pragma once

#include <optional>
#include <string>

#include "data/read/case_line.h"
#include "tools/accuracy/accuracy.h"

namespace shardplan {

// The case must carry `measured`. Its id stays even where the line cannot be predicted.
AccuracyCase accuracy_case(const Case& question, const std::string& set, const Library& library);

// What the driver reported at the run's peak, of the fullest rank; nothing where it is not known.
std::optional<std::int64_t> measured_device_bytes(const Measurement& measured);

// Seconds of a step: the median of the steps measured, or what the throughput says.
std::optional<double> measured_step_s(const Measurement& measured, const Job& job);

}  // namespace shardplan
