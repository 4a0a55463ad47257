// Hugging Face config.json -> ModelSpec, with the traps of every family handled by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/read/json_reader.h"
#include "estimator/plan/model_spec.h"

namespace shardplan {

// The most layers and modules of multi-token prediction that a model may have. Published models
// have at most a few hundred layers; the time of an answer grows with them.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxMtpLayers = 16;

struct ModelConfig {
  ModelSpec model;
  std::vector<std::string> warnings;  // one line each: keys nobody knows, dtype conflicts, ...
};

enum class UnknownKeys { kWarn, kRefuse };

// `name` becomes ModelSpec::name. Unknown architectures, unknown layer types and contradictions are
// InputErrors; keys without effect on memory or time are ignored per architecture.
ModelConfig read_model_config(const JsonValue& config, const std::string& name,
                              const std::string& file, UnknownKeys unknown_keys);

}  // namespace shardplan
