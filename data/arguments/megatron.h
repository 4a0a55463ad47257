// Parts of data/arguments/megatron.cpp that have a file of their own. Names and defaults as in
// Megatron-LM core_v0.16.1, training/arguments.py (validate_args,
// core_transformer_config_from_args) and core/transformer/transformer_config.py.
#pragma once

#include "data/arguments/run_settings.h"

namespace shardplan {

inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;  // of widths and vocabularies
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;  // of layers, ranks, sequences

// What nothing states and is taken stands in `notes`.
ModelSpec megatron_model(const RunArguments& arguments, std::vector<std::string>& notes);
// "unsupported: ..." for the first setting that is refused whatever the others are, else "".
std::string why_refused(const RunArguments& arguments);

// --fp8-recipe, which Megatron-LM has a default of with and without --fp8-format.
std::string fp8_recipe(const RunArguments& arguments);

// Sizes, schedule, recompute and types; with `unsupported` set where nothing describes them.
void read_megatron_plan(const RunArguments& arguments, RunReading& run);

}  // namespace shardplan
