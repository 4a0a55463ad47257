// Hybrids of Mamba-2 as Megatron-LM's arguments say them (pretrain_mamba.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/arguments/arguments.h"
#include "estimator/plan/model_spec.h"

namespace shardplan {

// A letter a layer, of --hybrid-layer-pattern, --hybrid-override-pattern or both ratios; none: the
// model is no hybrid. Throws InputError where a letter is unknown or the letters are not as many
// as --num-layers says.
std::optional<std::string> hybrid_pattern(const RunArguments& arguments);

// The reason why a hybrid of these arguments is not described; empty: it is.
std::string why_hybrid_refused(const RunArguments& arguments);

// The layers and Mamba-2's sizes, of a model that has all others. Turns positions or not as
// --position-embedding-type says.
void read_hybrid(const RunArguments& arguments, const std::string& pattern, ModelSpec& model);

}  // namespace shardplan
