// How every component of a plan's memory and every term of its step time moves along one axis.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "estimator/estimate.h"

namespace shardplan {

enum class ScalingAxis {
  kTp,  // this degree and the number of GPUs grow together, all other sizes stay
  kCp,
  kPp,
  kEp,  // within the data-parallel ranks: the number of GPUs stays
  kDp,  // the number of GPUs grows, the global batch stays
  kZero,
  kMicroBatch,      // the global batch stays
  kSequenceLength,  // doubled up to 1M tokens, the global batch of sequences stays
};
inline constexpr std::array<NamedValue<ScalingAxis>, 8> kScalingAxes = {{
    {.value = ScalingAxis::kTp, .name = "tp"},
    {.value = ScalingAxis::kCp, .name = "cp"},
    {.value = ScalingAxis::kPp, .name = "pp"},
    {.value = ScalingAxis::kEp, .name = "ep"},
    {.value = ScalingAxis::kDp, .name = "dp"},
    {.value = ScalingAxis::kZero, .name = "zero"},
    {.value = ScalingAxis::kMicroBatch, .name = "micro_batch"},
    {.value = ScalingAxis::kSequenceLength, .name = "sequence_length"},
}};
constexpr const auto& names_of(ScalingAxis) {
  return kScalingAxes;
}

struct ScalingPoint {
  std::int64_t value = 0;
  std::int64_t num_gpus = 0;
  std::string invalid;  // why the framework refuses it; then nothing below is set
  bool is_own = false;  // the plan's own value
  StageMemory stage;    // the fullest one
  StepTime time;
  Fit fit = Fit::kFits;
  std::string largest_row;  // at the peak
  std::int64_t largest_row_bytes = 0;
};

struct ScalingTable {
  ScalingAxis axis = ScalingAxis::kTp;
  std::vector<ScalingPoint> points;
};

// The plan must be valid. Axes without a second valid value are left out.
std::vector<ScalingTable> scaling_tables(const Job& job, const Plan& plan);

}  // namespace shardplan
