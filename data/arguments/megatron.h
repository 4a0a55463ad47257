// A run of Megatron-LM, by its arguments: names and defaults as in
// Megatron-LM core_v0.16.1, training/arguments.py (validate_args,
// core_transformer_config_from_args) and core/transformer/transformer_config.py.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;  // of widths and vocabularies
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;  // of layers, ranks, sequences

RunReading read_megatron_run(const RunSettings& settings, const ClusterSpec& cluster,
                             const Library& library);

}  // namespace shardplan
