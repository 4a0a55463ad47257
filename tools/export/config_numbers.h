// Numbers of a config.json inside formulas: they take neither memory nor time, and a launch needs
// them all the same.
#pragma once

#include <optional>

#include "data/read/json_reader.h"

namespace shardplan {

struct ConfigNumbers {
  std::optional<double> rope_theta;
  std::optional<double> partial_rotary_factor;
  std::optional<double> rope_scaling_factor;  // of Llama 3.1's scaling
  std::optional<double> norm_epsilon;
  std::optional<double> swiglu_limit;  // of gate and up, before the activation
  std::optional<double> routed_scaling_factor;
  std::optional<bool> normalizes_topk;  // weights of a token's experts add up to one
};

// `config`: an object, or null.
ConfigNumbers config_numbers(const JsonValue& config);

}  // namespace shardplan
